//! Pages that say what to type, played word for word against real servers.

mod debezium;
mod kafka;
mod operate;
mod rabbitmq;
mod start;
mod terminal;
