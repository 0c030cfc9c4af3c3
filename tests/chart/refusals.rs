//! Every wrong value fails before anything is installed, with a sentence that names it.

use super::tools::{chart, template, text};

/// Settings over `ci/kafka-values.yaml`, and what must be said.
const WRONG: [(&[&str], &str); 85] = [
    (
        &["replicas=3"],
        "additional properties 'replicas' not allowed",
    ),
    (
        &["replicaCount=-1"],
        "at '/replicaCount': minimum: got -1, want 0",
    ),
    (
        &["replicaCount=two"],
        "at '/replicaCount': got string, want integer",
    ),
    (
        &["image.name=x"],
        "at '/image': additional properties 'name' not allowed",
    ),
    (
        &["image.repository="],
        "image.repository is empty: build the image",
    ),
    (&["image.repository=https://x/y"], "at '/image/repository'"),
    (&["image.tag=latest"], "image.tag is latest: name a version"),
    (&["image.tag=a b"], "at '/image/tag'"),
    (&["image.digest=sha256:abc"], "at '/image/digest'"),
    (
        &["image.pullPolicy=Sometimes"],
        "at '/image/pullPolicy': value must be one of",
    ),
    (
        &["image.pullSecrets=x"],
        "at '/image/pullSecrets': got string, want array",
    ),
    (&["config=text"], "at '/config': got string, want object"),
    (
        &["config.redis=text"],
        "at '/config/redis': got string, want null or object",
    ),
    (&["config.routes=null"], "config.routes is empty"),
    (&["config.routes.Bad.from=x"], "invalid propertyName 'Bad'"),
    (
        &["config.kafka.a__b.brokers=x"],
        "invalid propertyName 'a__b'",
    ),
    (
        &["config.routes.orders=text"],
        "at '/config/routes/orders': got string",
    ),
    (
        &["config.shutdown_timeout=3s"],
        "config.shutdown_timeout is the chart's to set: use shutdownTimeoutSeconds",
    ),
    (
        &["config.admin.listen=0.0.0.0:80"],
        "config.admin.listen is the chart's to set: use listenAddress",
    ),
    (&["config.admin=off"], "config.admin is the chart's to set"),
    (
        &["config.admin.places=3"],
        "config.admin.places is the chart's to set: the chart has no value for it",
    ),
    (
        &["config.cluster.name=relay"],
        "config.cluster.name would name every pod alike",
    ),
    (
        &["config.traces.authorization=hunter2"],
        "config.traces.authorization is a secret",
    ),
    (&["config.redis.url=null"], "it is not said where Redis is"),
    (
        &["config.redis.url=redis://:hunter2@r"],
        "config.redis.url holds a password",
    ),
    (
        &["secrets.redis.name=x"],
        "config.redis.url and secrets.redis.name are both set",
    ),
    (&["secrets.redis.name=X"], "at '/secrets/redis/name'"),
    (&["secrets.redis.key=a/b"], "at '/secrets/redis/key'"),
    (
        &["config.redis.topology=ring"],
        "config.redis.topology is ring: it is standalone, sentinel or cluster",
    ),
    (
        &["config.redis.nodes={r:1}"],
        "config.redis.nodes goes with config.redis.topology sentinel or cluster",
    ),
    (
        &["config.redis.tls=true"],
        "config.redis.tls goes with config.redis.topology sentinel or cluster",
    ),
    (
        &["config.redis.password=hunter2"],
        "config.redis.password is a password: put it into a Secret",
    ),
    (
        &["secrets.redisPassword.name=x"],
        "secrets.redisPassword goes with config.redis.topology sentinel or",
    ),
    (
        &["config.redis.master=m"],
        "config.redis.master goes with config.redis.topology sentinel",
    ),
    (
        &["secrets.sentinelPassword.name=x"],
        "secrets.sentinelPassword goes with config.redis.topology sentinel",
    ),
    (
        &["secrets.redisPassword.name=X"],
        "at '/secrets/redisPassword/name'",
    ),
    (
        &["secrets.sentinelPassword.key=a/b"],
        "at '/secrets/sentinelPassword/key'",
    ),
    (
        &["config.rabbitmq.m.url=amqp://u:hunter2@r"],
        "config.rabbitmq.m.url holds a password",
    ),
    (
        &["config.rabbitmq.m.urls={amqp://u:p@a/,amqp://u:p@b/}"],
        "config.rabbitmq.m.urls hold a password",
    ),
    (
        &[
            "config.rabbitmq.m.url=amqp://r",
            "secrets.rabbitmq.m.name=x",
            "secrets.rabbitmq.m.key=k",
        ],
        "config.rabbitmq.m.url and secrets.rabbitmq.m are both set",
    ),
    (
        &["secrets.rabbitmq.m=x"],
        "at '/secrets/rabbitmq/m': got string, want object",
    ),
    (
        &["secrets.kafka.main.name=x"],
        "at '/secrets/kafka/main': missing property 'key'",
    ),
    (
        &["secrets.kafka.other.name=x", "secrets.kafka.other.key=k"],
        "secrets.kafka.other belongs to no connection",
    ),
    (
        &["config.kafka.main.properties.sasl\\.password=hunter2"],
        "config.kafka.main.properties holds sasl.password",
    ),
    (
        &["config.kafka.main.properties.SASL\\.OAUTHBEARER\\.config=hunter2"],
        "config.kafka.main.properties holds SASL.OAUTHBEARER.config",
    ),
    (
        &["config.kafka.main.properties.sasl\\.jaas\\.config=hunter2"],
        "config.kafka.main.properties holds sasl.jaas.config",
    ),
    (
        &["config.kafka.main.properties.x\\.token=hunter2"],
        "config.kafka.main.properties holds x.token",
    ),
    (
        &["config.kafka.main.properties.ssl\\.key\\.pem=hunter2"],
        "config.kafka.main.properties holds ssl.key.pem",
    ),
    (
        &[
            "config.kafka.main.properties_file=/x",
            "secrets.kafka.main.name=x",
            "secrets.kafka.main.key=k",
        ],
        "config.kafka.main.properties and secrets.kafka.main are both set",
    ),
    (
        &[
            "config.kafka.main.properties.a=b",
            "secrets.kafka.main.name=x",
            "secrets.kafka.main.key=k",
        ],
        "config.kafka.main.properties and secrets.kafka.main are both set: put all properties into the Secret",
    ),
    (
        &["secrets.writeTokens.name="],
        "the API listens on the pod's address and needs a token",
    ),
    (
        &["check.beforeChanges=yes please"],
        "at '/check/beforeChanges': got string, want boolean",
    ),
    (
        &["check.timeoutSeconds=0"],
        "at '/check/timeoutSeconds': minimum: got 0, want 10",
    ),
    (
        &["shutdownTimeoutSeconds=20s"],
        "at '/shutdownTimeoutSeconds': got string, want integer",
    ),
    (
        &["shutdownTimeoutSeconds=0"],
        "at '/shutdownTimeoutSeconds': minimum: got 0, want 1",
    ),
    (
        &["resources.limits.memory=lots"],
        "at '/resources/limits/memory'",
    ),
    (
        &["service.type=Foo"],
        "at '/service/type': value must be one of",
    ),
    (
        &["service.port=70000"],
        "at '/service/port': maximum: got 70,000, want 65,535",
    ),
    (
        &["podDisruptionBudget.maxUnavailable=0"],
        "at '/podDisruptionBudget/maxUnavailable': minimum: got 0, want 1",
    ),
    (
        &["livenessProbe.failureThreshold=0"],
        "at '/livenessProbe/failureThreshold': minimum: got 0, want 1",
    ),
    (
        &["podSecurityContext.runAsUser=0"],
        "at '/podSecurityContext/runAsUser': minimum: got 0, want 1",
    ),
    (
        &["podSecurityContext.runAsNonRoot=false"],
        "additional properties 'runAsNonRoot' not allowed",
    ),
    (
        &["extraEnv[0].name=POSTDATE_ADMIN__LISTEN"],
        "extraEnv sets POSTDATE_ADMIN__LISTEN, which is the chart's to set",
    ),
    (
        &[
            "extraEnv[0].name=POSTDATE_REDIS__URL",
            "extraEnv[0].value=redis://:hunter2@r",
        ],
        "extraEnv gives POSTDATE_REDIS__URL a URL with a password: put it into a Secret",
    ),
    (
        &[
            "extraEnv[0].name=POSTDATE_REDIS__PASSWORD",
            "extraEnv[0].value=hunter2",
        ],
        "extraEnv gives POSTDATE_REDIS__PASSWORD, a secret, as a plain value",
    ),
    (
        &[
            "extraEnv[0].name=POSTDATE_REDIS__SENTINEL_PASSWORD",
            "extraEnv[0].value=hunter2",
        ],
        "extraEnv gives POSTDATE_REDIS__SENTINEL_PASSWORD, a secret, as a plain value",
    ),
    (
        &[
            "extraEnv[0].name=POSTDATE_TRACES__AUTHORIZATION",
            "extraEnv[0].value=hunter2",
        ],
        "extraEnv gives POSTDATE_TRACES__AUTHORIZATION, a secret, as a plain value",
    ),
    (
        &[
            "extraEnv[0].name=POSTDATE_TOKEN",
            "extraEnv[0].value=hunter2",
        ],
        "extraEnv gives POSTDATE_TOKEN, a secret, as a plain value",
    ),
    (
        &[
            "extraEnv[0].name=POSTDATE_KAFKA__MAIN__PROPERTIES__SASL_PASSWORD",
            "extraEnv[0].value=hunter2",
        ],
        "extraEnv gives POSTDATE_KAFKA__MAIN__PROPERTIES__SASL_PASSWORD, a secret, as a plain value",
    ),
    (
        &[
            "extraEnv[0].name=POSTDATE_KAFKA__MAIN__PROPERTIES__SSL_KEY_PEM",
            "extraEnv[0].value=hunter2",
        ],
        "extraEnv gives POSTDATE_KAFKA__MAIN__PROPERTIES__SSL_KEY_PEM, a secret, as a plain value",
    ),
    (
        &[
            "extraEnv[0].name=AWS_SECRET_ACCESS_KEY",
            "extraEnv[0].value=hunter2",
        ],
        "extraEnv gives AWS_SECRET_ACCESS_KEY, a secret, as a plain value",
    ),
    (
        &["serviceMonitor.enabled=true", "podMonitor.enabled=true"],
        "serviceMonitor.enabled and podMonitor.enabled are both true: each pod would be scraped twice",
    ),
    (
        &["serviceMonitor.interval=30"],
        "at '/serviceMonitor/interval'",
    ),
    (
        &["podMonitor.interval=5s"],
        "podMonitor.scrapeTimeout is 10s, longer than its interval of 5s: Prometheus refuses that",
    ),
    (
        &["podMonitor.port=http"],
        "at '/podMonitor': additional properties 'port' not allowed",
    ),
    (
        &["prometheusRule.runbookUrl=wiki"],
        "at '/prometheusRule/runbookUrl'",
    ),
    (
        &["prometheusRule.enabled=1"],
        "at '/prometheusRule/enabled'",
    ),
    (
        &["dashboards.labels.x=true"],
        "at '/dashboards/labels/x': got boolean, want string",
    ),
    (
        &["networkPolicy.enabled=yes please"],
        "at '/networkPolicy/enabled': got string, want boolean",
    ),
    (
        &["networkPolicy.enabled=true"],
        "networkPolicy.egress.redis is empty: with networkPolicy.enabled the pods reach only what is named there, \
         so nothing would run\n- networkPolicy.egress.brokers is empty",
    ),
    (
        &["networkPolicy.ingress.admin[0].from=x"],
        "at '/networkPolicy/ingress/admin/0': additional properties",
    ),
    (
        &["networkPolicy.egress.redis[0].to[0].podSelector.app=r"],
        "additional properties 'app' not allowed",
    ),
    (
        &["networkPolicy.egress.redis[0].to[0].ipBlock.cidr=::/0"],
        "missing property 'ports'",
    ),
    (
        &[
            "networkPolicy.egress.dns[0].to[0].ipBlock.cidr=::/0",
            "networkPolicy.egress.dns[0].ports[0].port=70000",
        ],
        "at '/networkPolicy/egress/dns/0/ports/0/port': maximum: got 70,000, want 65,535",
    ),
    (
        &["topologySpreadConstraints[0].maxSkew=1"],
        "at '/topologySpreadConstraints/0': missing properties",
    ),
];

/// Settings of TLS, addresses, names and labels over `ci/kafka-values.yaml`, and what must be said.
const POD_REFUSALS: [(&[&str], &str); 20] = [
    (&["secrets.adminTls.name=X"], "at '/secrets/adminTls/name'"),
    (&["secrets.adminTls.ca=a/b"], "at '/secrets/adminTls/ca'"),
    (&["secrets.adminTls.key="], "at '/secrets/adminTls/key'"),
    (
        &["serviceMonitor.tlsConfig.insecureSkipVerify=true"],
        "serviceMonitor.tlsConfig is set, and the API speaks no TLS: name a Secret",
    ),
    (
        &["podMonitor.tlsConfig.serverName=x"],
        "podMonitor.tlsConfig is set, and the API speaks no TLS: name a Secret",
    ),
    (
        &["podMonitor.tlsConfig.caFile=/x"],
        "at '/podMonitor/tlsConfig': additional properties 'caFile' not allowed",
    ),
    (
        &["serviceMonitor.tlsConfig.ca.secret.name=x"],
        "at '/serviceMonitor/tlsConfig/ca/secret': missing property 'key'",
    ),
    (
        &["podMonitor.relabelings[0].action=remove"],
        "at '/podMonitor/relabelings/0/action': value must be one of",
    ),
    (
        &["serviceMonitor.metricRelabelings[0].source=x"],
        "at '/serviceMonitor/metricRelabelings/0': additional properties 'source' not allowed",
    ),
    (
        &["listenAddress=127.0.0.1"],
        "at '/listenAddress': value must be one of '::', '0.0.0.0'",
    ),
    (
        &["service.ipFamilyPolicy=Both"],
        "at '/service/ipFamilyPolicy': value must be one of",
    ),
    (
        &["service.ipFamilies={IPv5}"],
        "at '/service/ipFamilies/0': value must be one of",
    ),
    (
        &[
            "service.ipFamilyPolicy=SingleStack",
            "service.ipFamilies={IPv6,IPv4}",
        ],
        "service.ipFamilyPolicy is SingleStack, and service.ipFamilies names two",
    ),
    (
        &["hostUsers=no one"],
        "at '/hostUsers': got string, want null or boolean",
    ),
    (&["dnsPolicy=Node"], "at '/dnsPolicy': value must be one of"),
    (
        &["dnsPolicy=None"],
        "dnsPolicy is None, so the pods would resolve no name: say which servers to ask in dnsConfig.nameservers",
    ),
    (
        &["dnsConfig.ndots=2"],
        "at '/dnsConfig': additional properties 'ndots' not allowed",
    ),
    (
        &["revisionHistoryLimit=-1"],
        "at '/revisionHistoryLimit': minimum: got -1, want 0",
    ),
    (
        &["commonLabels.helm\\.sh/chart=x"],
        "commonLabels sets helm.sh/chart, which is the chart's to set",
    ),
    (
        &["podLabels.app\\.kubernetes\\.io/name=x"],
        "podLabels sets app.kubernetes.io/name, which is the chart's to set",
    ),
];

/// Settings over `ci/sentinel-values.yaml`, and what must be said.
const BEHIND_SENTINELS: [(&[&str], &str); 14] = [
    (
        &["evaluationRedis.enabled=true"],
        "evaluationRedis is a single server: it does not go with",
    ),
    (
        &["config.redis.nodes=null"],
        "config.redis.nodes is empty: name the sentinels, each host:port",
    ),
    (
        &["config.redis.topology=cluster", "config.redis.nodes=null"],
        "config.redis.nodes is empty: name some nodes of the cluster, each host:port",
    ),
    (
        &["config.redis.nodes=redis:6379"],
        "config.redis.nodes is not a list",
    ),
    (
        &["config.redis.nodes={redis}"],
        "config.redis.nodes holds redis, which is not host:port",
    ),
    (
        &["config.redis.nodes={redis://u:hunter2@r:1}"],
        "config.redis.nodes holds a URL: a node is host:port",
    ),
    (
        &["config.redis.master="],
        "config.redis.master is empty: it is what the sentinels call the master",
    ),
    (
        &["config.redis.topology=cluster"],
        "config.redis.master goes with config.redis.topology sentinel\n- config.redis.sentinel_username goes with",
    ),
    (
        &["config.redis.topology=standalone"],
        "it is not said where Redis is",
    ),
    (
        &["config.redis.url=redis://r"],
        "config.redis.url is for a standalone server: with config.redis.topology sentinel config.redis.nodes says",
    ),
    (
        &["secrets.redis.name=x"],
        "secrets.redis holds the URL of a standalone server",
    ),
    (
        &["config.redis.sentinel_password=hunter2"],
        "config.redis.sentinel_password is a password: put it into a Secret",
    ),
    (
        &["config.redis.password_file=/x"],
        "config.redis.password_file and secrets.redisPassword.name are both set",
    ),
    (
        &["config.redis.sentinel_password_file=/x"],
        "config.redis.sentinel_password_file and secrets.sentinelPassword.name are both set",
    ),
];

/// Settings of what scales, connects and is only for a try, over `ci/kafka-values.yaml`, and what must be said.
const SCALING_REFUSALS: [(&[&str], &str); 21] = [
    (
        &["autoscaling.minReplicas=7", "autoscaling.maxReplicas=3"],
        "autoscaling.minReplicas is 7, more than its maxReplicas of 3",
    ),
    (
        &["autoscaling.minReplicas=0"],
        "at '/autoscaling/minReplicas': minimum: got 0, want 1",
    ),
    (
        &["autoscaling.replicas=2"],
        "at '/autoscaling': additional properties 'replicas' not allowed",
    ),
    (
        &["autoscaling.metrics[0].type=Cpu"],
        "at '/autoscaling/metrics/0/type': value must be one of",
    ),
    (
        &[
            "autoscaling.enabled=true",
            "autoscaling.targetCPUUtilizationPercentage=0",
        ],
        "autoscaling has nothing to go by",
    ),
    (
        &[
            "autoscaling.enabled=true",
            "keda.enabled=true",
            "keda.prometheusAddress=http://p:9090",
        ],
        "autoscaling.enabled and keda.enabled are both true",
    ),
    (
        &["keda.enabled=true"],
        "keda.prometheusAddress is empty: KEDA asks Prometheus for the lag and the lateness",
    ),
    (
        &["keda.prometheusAddress=prometheus:9090"],
        "at '/keda/prometheusAddress'",
    ),
    (
        &["keda.prometheusAddress=http://u:hunter2@p"],
        "keda.prometheusAddress holds a password",
    ),
    (
        &["keda.lateness=1"],
        "at '/keda/lateness': got number, want string",
    ),
    (
        &["keda.minReplicas=0"],
        "at '/keda/minReplicas': minimum: got 0, want 1",
    ),
    (
        &["keda.ingressLag=many"],
        "at '/keda/ingressLag': got string, want integer",
    ),
    (&["check.connect=1"], "at '/check/connect'"),
    (
        &["check.connect=true", "check.beforeChanges=false"],
        "check.connect goes with check.beforeChanges",
    ),
    (
        &["evaluationRedis.enabled=true"],
        "evaluationRedis.enabled and another Redis (config.redis.url or secrets.redis) are both set",
    ),
    (
        &[
            "evaluationRedis.enabled=true",
            "config.redis.url=null",
            "check.connect=true",
        ],
        "check.connect cannot go with evaluationRedis.enabled: the Job runs before that Redis is installed",
    ),
    (
        &["evaluationRedis.image=redis"],
        "at '/evaluationRedis/image'",
    ),
    (
        &["evaluationRedis.maxmemoryMi=8"],
        "at '/evaluationRedis/maxmemoryMi': minimum: got 8, want 16",
    ),
    (
        &["evaluationRedis.storage=big"],
        "at '/evaluationRedis/storage'",
    ),
    (
        &["extraObjects[0].kind=ConfigMap"],
        "at '/extraObjects/0': missing property 'apiVersion'",
    ),
    (
        &["extraObjects=text"],
        "at '/extraObjects': got string, want array",
    ),
];

#[test]
fn every_wrong_value_is_refused_with_a_sentence() {
    let over = |case: &str, all: &[(&'static [&'static str], &'static str)]| {
        let case = chart().join("ci").join(case);
        all.iter()
            .map(|(set, expected)| (case.clone(), *set, *expected))
            .collect::<Vec<_>>()
    };
    let all = [
        over("kafka-values.yaml", &WRONG),
        over("kafka-values.yaml", &SCALING_REFUSALS),
        over("kafka-values.yaml", &POD_REFUSALS),
        over("sentinel-values.yaml", &BEHIND_SENTINELS),
    ];
    for (right, set, expected) in all.concat() {
        let output = template(&[&right], set);
        let error = text(&output.stderr);
        assert!(!output.status.success(), "{set:?} was taken");
        assert!(
            error.contains(expected),
            "{set:?}: expected {expected:?} in\n{error}"
        );
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn all_that_is_missing_is_said_at_once() {
    let error = text(&template(&[], &[]).stderr);
    for expected in [
        "image.repository",
        "config.routes",
        "secrets.writeTokens.name",
        "where Redis is",
    ] {
        assert!(error.contains(expected), "{expected}: {error}");
    }
}
