//! The scripts, as constants: each is the prelude and its own file under a shebang that says whether it
//! may run at `maxmemory`.

use redis::Script;

macro_rules! script {
    (allow_oom $file:literal) => {
        Script::new(concat!(
            "#!lua flags=allow-oom\n",
            include_str!("scripts/prelude.lua"),
            include_str!(concat!("scripts/", $file))
        ))
    };
    (bare $file:literal) => {
        Script::new(concat!("#!lua flags=allow-oom\n", include_str!(concat!("scripts/", $file))))
    };
    ($file:literal) => {
        Script::new(concat!(
            "#!lua\n",
            include_str!("scripts/prelude.lua"),
            include_str!(concat!("scripts/", $file))
        ))
    };
}

use std::sync::LazyLock;

/// Stores; refused at `maxmemory`.
pub(super) static WRITE: LazyLock<Script> = LazyLock::new(|| script!("write.lua"));
/// The same for a call that stores nothing: cancels free memory.
pub(super) static CANCEL: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "write.lua"));
/// Stores the command's own message; refused at `maxmemory`.
pub(super) static RESCHEDULE: LazyLock<Script> = LazyLock::new(|| script!("reschedule.lua"));
/// Moves a message that is in the store already.
pub(super) static MOVE: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "reschedule.lua"));
pub(super) static CLAIM: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "claim.lua"));
pub(super) static SETTLE: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "settle.lua"));
pub(super) static DIVIDE: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "divide.lua"));
pub(super) static HOLD: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "hold.lua"));
pub(super) static GIVE_BACK: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "give_back.lua"));
pub(super) static SWEEP: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "sweep.lua"));
pub(super) static AUDIT: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "audit.lua"));
pub(super) static RECOUNT: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "recount.lua"));
pub(super) static REDRIVE: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "redrive.lua"));
pub(super) static DROP: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "drop.lua"));
pub(super) static MARK: LazyLock<Script> = LazyLock::new(|| script!(bare "mark.lua"));
