//! Reads `tls`: a table that names PEM files. The files are read at once, so that a wrong one is reported by its key.

use std::path::PathBuf;

use super::section::SectionReader;
use crate::tls::{ClientFiles, IdentityFiles};

/// A problem was reported, so there is no value.
pub(super) struct Reported;

/// What was read under keys that may be missing.
type ReadFiles<T> = Result<Option<T>, Reported>;

/// Reads the files of a connection. Without the table no file is named.
pub(super) fn client_files(section: &SectionReader<'_>) -> Option<ClientFiles> {
    if !section.has("tls") {
        return Some(ClientFiles::default());
    }
    section.table("tls", |table| {
        let ca = path(table, "ca");
        let identity = identity(table);
        let authorities = ClientFiles {
            ca: ca.ok()?,
            identity: None,
        };
        report(table, "ca", authorities.check()).ok()?;
        Some(ClientFiles {
            identity: identity.ok()?,
            ..authorities
        })
    })
}

/// Reads the files of a listener. Without the table it speaks no TLS.
pub(super) fn server_files(section: &SectionReader<'_>) -> ReadFiles<IdentityFiles> {
    if !section.has("tls") {
        return Ok(None);
    }
    let files = section.table("tls", |table| match identity(table).ok()? {
        None => table.missing("certificate"),
        files => files,
    });
    files.map(Some).ok_or(Reported)
}

/// Reads the files of a certificate and its key: both, or none.
fn identity(table: &SectionReader<'_>) -> ReadFiles<IdentityFiles> {
    let certificate = path(table, "certificate");
    let key = path(table, "key");
    let missing = match (certificate?, key?) {
        (None, None) => return Ok(None),
        (Some(certificate), Some(key)) => {
            let files = IdentityFiles { certificate, key };
            report(table, "certificate", files.load().map(drop))?;
            return Ok(Some(files));
        }
        (Some(_), None) => "key",
        (None, Some(_)) => "certificate",
    };
    table.missing(missing).ok_or(Reported)
}

/// Reads a path that may be missing.
fn path(table: &SectionReader<'_>, key: &'static str) -> ReadFiles<PathBuf> {
    if !table.has(key) {
        return Ok(None);
    }
    let path = table.parsed(key, |text| match text {
        "" => Err("is empty; name a file, or leave the key out".to_owned()),
        _ => Ok(PathBuf::from(text)),
    });
    path.map(Some).ok_or(Reported)
}

fn report(table: &SectionReader<'_>, key: &str, read: Result<(), String>) -> Result<(), Reported> {
    read.map_err(|why| {
        table.report(key, why);
        Reported
    })
}
