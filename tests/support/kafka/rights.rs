//! Rights of Kafka's principals: the two requests of its protocol that no client library here makes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A right at a Kafka that checks them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaRight {
    pub resource: KafkaResource,
    pub name: String,
    pub operation: KafkaOperation,
}

/// Kind of resource of a right, by its number in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KafkaResource {
    Topic = 2,
    Group = 3,
}

/// Operation that a right allows, by its number in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KafkaOperation {
    Read = 3,
    Write = 4,
    Describe = 8,
    DescribeConfigs = 10,
}

/// API keys; both are spoken in version 1, with the header of version 1.
const CREATE_ACLS: i16 = 30;
const DELETE_ACLS: i16 = 31;
const VERSION: i16 = 1;
const LITERAL: u8 = 3;
const ALLOW: u8 = 3;

impl KafkaRight {
    /// Gives the right to a principal (`User:CN=postdate`), from any host, at a node that we may tell so.
    pub(super) fn allow(&self, port: u16, principal: &str) {
        let mut creation = self.resource();
        creation.extend(text(principal));
        creation.extend(text("*"));
        creation.extend([self.operation as u8, ALLOW]);
        self.ask(port, CREATE_ACLS, &creation);
    }

    /// Takes it away.
    pub(super) fn forbid(&self, port: u16, principal: &str) {
        let mut filter = self.resource();
        filter.extend(text(principal));
        filter.extend(text("*"));
        filter.extend([self.operation as u8, ALLOW]);
        self.ask(port, DELETE_ACLS, &filter);
    }

    fn resource(&self) -> Vec<u8> {
        [&[self.resource as u8][..], &text(&self.name), &[LITERAL]].concat()
    }

    /// Sends one creation or one filter. Both answers begin with the time of throttling, a count, and the error of the first.
    fn ask(&self, port: u16, key: i16, one: &[u8]) {
        let correlation = 7_i32;
        let count = 1_i32;
        let header = [
            &key.to_be_bytes()[..],
            &VERSION.to_be_bytes(),
            &correlation.to_be_bytes(),
            &text("tests"),
        ];
        let request = [&header.concat()[..], &count.to_be_bytes(), one].concat();
        let mut connection = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        connection
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("a limit");
        connection
            .write_all(&(request.len() as i32).to_be_bytes())
            .expect("written");
        connection.write_all(&request).expect("written");
        let mut length = [0; 4];
        connection.read_exact(&mut length).expect("an answer");
        let mut answer = vec![0; i32::from_be_bytes(length) as usize];
        connection.read_exact(&mut answer).expect("an answer");
        let number =
            |at: usize| i32::from_be_bytes(answer[at..at + 4].try_into().expect("four bytes"));
        assert_eq!(
            (number(0), number(8)),
            (correlation, count),
            "an answer to {self:?}: {answer:?}"
        );
        let error = i16::from_be_bytes(answer[12..14].try_into().expect("two bytes"));
        assert_eq!(error, 0, "the answer to {self:?}");
    }
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as i16).to_be_bytes()[..], text.as_bytes()].concat()
}
