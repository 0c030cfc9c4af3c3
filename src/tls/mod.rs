//! Parts of TLS that rooms share: files of certificates and keys, trusted authorities, and sentences about failures.
//!
//! Client libraries report a failure of TLS in words of their own. Some have one sentence for several causes, and some
//! wait without a word. [`examine()`] therefore connects once more where a library could not, and names the cause as a
//! [`TlsTrouble`]. Each cause has one sentence, whichever server it is about.

mod examine;
mod files;
mod trouble;

pub use examine::{Expected, examine};
pub use files::{ClientFiles, IdentityFiles, IdentityPem};
pub use trouble::{KeyHints, TlsTrouble};
