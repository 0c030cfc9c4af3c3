//! Environment variables that say where AWS credentials are, by the names that AWS gives them.

use std::collections::BTreeMap;

use crate::domain::Secret;

/// The variables that are read.
const VARIABLES: [&str; 16] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_ENDPOINT_URL_STS",
    "AWS_PROFILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "HOME",
];

/// Values of these variables, without those that are not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AwsEnvironment(BTreeMap<&'static str, Secret>);

impl AwsEnvironment {
    /// Reads the variables.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = VARIABLES
            .into_iter()
            .filter_map(|name| Some((name, Secret::new(variable(name)?))));
        Self(set.collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        debug_assert!(VARIABLES.contains(&name), "{name} is not read");
        self.0.get(name).map(Secret::expose)
    }
}
