//! Notes by name what cannot be tested on this machine: a test that passes without having tested must not be silent.

use std::fs::OpenOptions;
use std::io::Write;

/// The variable that names the file which `scripts/test` prints at its end.
const FILE: &str = "POSTDATE_TEST_NOT_TESTED";

/// Notes that a test did nothing, and why.
pub fn not_tested(test: &str, why: &str) {
    let why = why.replace('\n', "; ");
    println!("NOT TESTED: {test}: {why}");
    let Some(file) = std::env::var_os(FILE) else {
        return;
    };
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(file)
        .expect("the list of what is not tested");
    writeln!(file, "{test}: {why}").expect("a line of what is not tested");
}
