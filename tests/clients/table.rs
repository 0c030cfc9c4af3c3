//! Client libraries that the page of producers shows: where each program lies and how it is run.
#![allow(
    dead_code,
    reason = "each of the two tests that include it uses its own part"
)]

/// Broker that a client speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BrokerKind {
    /// Apache Kafka.
    Kafka,
    /// RabbitMQ.
    Rabbitmq,
}

impl BrokerKind {
    /// Name of it in a client's name.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::Rabbitmq => "rabbitmq",
        }
    }
}

/// One client library, and the program that shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientProgram {
    /// Folder below `tests/clients`.
    pub(crate) language: &'static str,
    /// Broker that it speaks to.
    pub(crate) broker: BrokerKind,
    /// Source, below the folder of the language.
    pub(crate) source: &'static str,
    /// Program and arguments, run where `scripts/test-clients` has built the language.
    pub(crate) command: &'static [&'static str],
}

impl ClientProgram {
    /// `java/kafka`: the name that scripts and records use.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.language, self.broker.word())
    }

    /// Path of the source in the repository.
    pub(crate) fn path(&self) -> String {
        format!("tests/clients/{}/{}", self.language, self.source)
    }
}

const fn client(
    language: &'static str,
    broker: BrokerKind,
    source: &'static str,
    command: &'static [&'static str],
) -> ClientProgram {
    ClientProgram {
        language,
        broker,
        source,
        command,
    }
}

/// Class path of the two programs in Java.
const CLASS_PATH: &str = "target/classes:lib/*";

/// All of them, in the order of the page.
pub(crate) const CLIENT_PROGRAMS: &[ClientProgram] = &[
    client(
        "java",
        BrokerKind::Kafka,
        "src/main/java/KafkaSend.java",
        &["java", "-cp", CLASS_PATH, "KafkaSend"],
    ),
    client(
        "java",
        BrokerKind::Rabbitmq,
        "src/main/java/RabbitmqSend.java",
        &["java", "-cp", CLASS_PATH, "RabbitmqSend"],
    ),
    client(
        "spring",
        BrokerKind::Kafka,
        "src/main/java/KafkaSend.java",
        &["java", "-cp", CLASS_PATH, "KafkaSend"],
    ),
    client(
        "spring",
        BrokerKind::Rabbitmq,
        "src/main/java/RabbitmqSend.java",
        &["java", "-cp", CLASS_PATH, "RabbitmqSend"],
    ),
    client(
        "python",
        BrokerKind::Kafka,
        "kafka_send.py",
        &["venv/bin/python", "kafka_send.py"],
    ),
    client(
        "python",
        BrokerKind::Rabbitmq,
        "rabbitmq_send.py",
        &["venv/bin/python", "rabbitmq_send.py"],
    ),
    client("go", BrokerKind::Kafka, "kafka/main.go", &["bin/kafka"]),
    client(
        "go",
        BrokerKind::Rabbitmq,
        "rabbitmq/main.go",
        &["bin/rabbitmq"],
    ),
    client("node", BrokerKind::Kafka, "kafka.js", &["node", "kafka.js"]),
    client(
        "node",
        BrokerKind::Rabbitmq,
        "rabbitmq.js",
        &["node", "rabbitmq.js"],
    ),
    client(
        "dotnet",
        BrokerKind::Kafka,
        "kafka/Program.cs",
        &["dotnet", "bin/kafka/Kafka.dll"],
    ),
    client(
        "dotnet",
        BrokerKind::Rabbitmq,
        "rabbitmq/Program.cs",
        &["dotnet", "bin/rabbitmq/Rabbitmq.dll"],
    ),
    client("php", BrokerKind::Kafka, "kafka.php", &["php", "kafka.php"]),
    client(
        "php",
        BrokerKind::Rabbitmq,
        "rabbitmq.php",
        &["php", "rabbitmq.php"],
    ),
    client("ruby", BrokerKind::Kafka, "kafka.rb", &["ruby", "kafka.rb"]),
    client(
        "ruby",
        BrokerKind::Rabbitmq,
        "rabbitmq.rb",
        &["ruby", "rabbitmq.rb"],
    ),
    client(
        "rust",
        BrokerKind::Kafka,
        "kafka.rs",
        &["bin/client-rust-kafka"],
    ),
    client(
        "rust",
        BrokerKind::Rabbitmq,
        "rabbitmq.rs",
        &["bin/client-rust-rabbitmq"],
    ),
];
