//! What others may send, and what must not get out: messages of a hostile producer, and our own secrets.

mod copies;
mod kafka_rights;
mod rights;
mod secrets;
