//! `check --connect`: tries Redis, the brokers, and every topic, queue and exchange that a route names.

use crate::config::Config;
