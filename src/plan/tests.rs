use super::*;

const PLUGIN_DEFINITIONS: &str = r#"{
    "exchanges": [
        { "name": "bills", "type": "x-delayed-message", "durable": true, "messages_delayed": 3,
          "arguments": { "x-delayed-type": "topic", "alternate-exchange": "lost" } },
        { "name": "Bills", "type": "x-delayed-message", "arguments": { "x-delayed-type": "direct" } },
        { "name": "old", "type": "x-delayed-message", "arguments": {} },
        { "name": "e\u001b[2J", "type": "x-delayed-message", "arguments": { "x-delayed-type": "topic" } },
        { "name": "matched", "type": "x-delayed-message", "arguments": { "x-delayed-type": "topic" } },
        { "name": "Bills.in", "type": "topic", "arguments": [] } ],
    "queues": [ { "name": "mail" } ],
    "bindings": [
        { "source": "bills", "destination": "mail", "destination_type": "queue", "routing_key": "bill.#", "arguments": {} },
        { "source": "bills", "destination": "it's", "destination_type": "queue", "routing_key": "",
          "arguments": { "x-match": "all" } },
        { "source": "shop", "destination": "matched", "destination_type": "exchange", "routing_key": "",
          "arguments": { "x-match": "all" } },
        { "source": "shop", "destination": "bills", "destination_type": "exchange", "routing_key": "", "arguments": {} } ] }"#;

fn plan(vhost: &str) -> PluginPlan {
    PluginPlan::new(
        &Definitions::parse(PLUGIN_DEFINITIONS, vhost).expect("definitions"),
        vhost,
    )
}

#[test]
fn an_exchange_becomes_an_ingress_a_queue_and_a_target_with_its_bindings() {
    let plan = plan("/");
    let bills = &plan.exchanges[0];
    assert_eq!(bills.waiting, Some(3));
    let expected = r#"
rabbitmqadmin declare exchange name=bills.in type=fanout durable=true
rabbitmqadmin declare queue name=bills.delayed durable=true arguments='{"x-delivery-limit":1000000,"x-queue-type":"quorum"}'
rabbitmqadmin declare binding source=bills.in destination_type=queue destination=bills.delayed routing_key=''
rabbitmqadmin declare exchange name=bills.out type=topic durable=true arguments='{"alternate-exchange":"lost"}'
rabbitmqadmin declare binding source=bills.out destination_type=queue destination=mail routing_key='bill.#'
rabbitmqadmin declare binding source=bills.out destination_type=queue destination="it's" routing_key='' arguments='{"x-match":"all"}'
"#;
    assert_eq!(bills.declare.join("\n"), expected.trim());
    let expected = "
rabbitmqadmin declare binding source=shop destination_type=exchange destination=bills.in routing_key=''
rabbitmqadmin delete binding source=shop destination_type=exchange destination=bills properties_key='~'
";
    assert_eq!(plan.switches(), expected.trim_start());
    assert_eq!(
        plan.removals(),
        "rabbitmqadmin delete exchange name=bills\nrabbitmqadmin delete exchange name=Bills\n"
    );
}

#[test]
fn names_are_free_ones_and_what_cannot_be_planned_is_said() {
    let plan = plan("/");
    let names: Vec<_> = plan
        .exchanges
        .iter()
        .map(|e| (e.route.as_str(), e.ingress.as_str()))
        .collect();
    assert_eq!(names, [("bills", "bills.in"), ("bills-2", "Bills.2.in")]);
    let said = [
        "`old`: it does not say which type",
        "control or invisible characters",
        "plan by --management",
    ];
    assert_eq!(plan.warnings.len(), said.len(), "{:?}", plan.warnings);
    for (warning, said) in plan.warnings.iter().zip(said) {
        assert!(warning.contains(said), "{warning}");
    }
    assert!(
        plan.declarations()
            .lines()
            .all(|line| !line.contains(is_unsafe))
    );
}

/// Every text of the definitions in turn holds a character that hides or commands.
#[test]
fn no_command_holds_an_unsafe_character_whichever_text_has_it() {
    let mut definitions: Value = serde_json::from_str(PLUGIN_DEFINITIONS).expect("JSON");
    definitions["bindings"][3]["properties_key"] = "~".into();
    definitions["exchanges"][3]["name"] = "plain".into();
    let mut refused = 0;
    for at in 0.. {
        for unsafe_text in ["\u{202e}", "\u{200b}", "\u{7f}", "\0"] {
            let mut changed = definitions.clone();
            let Some(text) = texts(&mut changed).into_iter().nth(at) else {
                assert!(refused > 40, "{refused}");
                return;
            };
            text.push_str(unsafe_text);
            let plan = PluginPlan::new(
                &Definitions::parse(&changed.to_string(), "/").expect("definitions"),
                "/",
            );
            let commands = plan.declarations() + &plan.switches() + &plan.removals();
            assert!(
                !commands.replace('\n', "").contains(is_unsafe),
                "{commands:?}"
            );
            assert!(!plan.configuration().replace('\n', "").contains(is_unsafe));
            let is_told = |warning: &&String| warning.contains("control or invisible characters");
            refused += plan.warnings.iter().filter(is_told).count();
        }
    }
}

/// All texts in a JSON value.
fn texts(value: &mut Value) -> Vec<&mut String> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter_mut().flat_map(texts).collect(),
        Value::Object(members) => members.values_mut().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn another_virtual_host_is_named_in_each_command_and_in_the_url() {
    let plan = plan("shop/eu");
    let declares = |line: &str| line.starts_with("rabbitmqadmin --vhost=shop/eu declare ");
    assert!(
        plan.declarations().lines().all(declares),
        "{}",
        plan.declarations()
    );
    assert!(
        plan.configuration().contains("127.0.0.1:5672/shop%2Feu\""),
        "{}",
        plan.configuration()
    );
    assert_eq!(
        PluginPlan::new(&Definitions::default(), "a\nb")
            .warnings
            .len(),
        1
    );
}

/// What an exchange of the plugin handed to another one, its successor hands to the other's successor: the other goes.
#[test]
fn exchanges_of_the_plugin_that_lead_to_each_other_are_replaced_together() {
    let definitions = r#"{
        "exchanges": [
            { "name": "a", "type": "x-delayed-message", "arguments": { "x-delayed-type": "topic" } },
            { "name": "b", "type": "x-delayed-message", "arguments": { "x-delayed-type": "fanout" } },
            { "name": "plain", "type": "fanout", "arguments": {} } ],
        "queues": [],
        "bindings": [
            { "source": "a", "destination": "b", "destination_type": "exchange", "routing_key": "k", "arguments": {} },
            { "source": "a", "destination": "plain", "destination_type": "exchange", "routing_key": "p", "arguments": {} } ] }"#;
    let definitions = Definitions::parse(definitions, "/").expect("definitions");
    let plan = PluginPlan::new(&definitions, "/");
    let between =
        "rabbitmqadmin declare binding source=a.out destination_type=exchange destination";
    let declared = plan.declarations();
    // Once both are declared.
    assert!(
        declared.ends_with(&format!("{between}=b.in routing_key=k\n")),
        "{declared}"
    );
    assert!(
        declared.contains(&format!("{between}=plain routing_key=p\n")),
        "{declared}"
    );
    assert!(!declared.contains("destination=b "), "{declared}");
}
