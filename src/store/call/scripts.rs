//! The scripts as constants. Each is the prelude and its own file, under a shebang that says whether the script
//! may run at `maxmemory`.

use redis::Script;

/// The features of a script that a call needs. Only such calls are given the keys for them, so all other calls
/// pay nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct ScriptVariant {
    /// The route remembers which names it delivered.
    pub(in crate::store) remembers: bool,
    /// The messages of one key leave in order on this route.
    pub(in crate::store) ordered: bool,
}

/// One script for each variant.
pub(in crate::store) struct ScriptVariants([Script; 4]);

impl ScriptVariants {
    /// The script for a variant.
    pub(in crate::store) fn of(&self, with: ScriptVariant) -> &Script {
        &self.0[usize::from(with.remembers) + 2 * usize::from(with.ordered)]
    }
}

macro_rules! whole {
    ($flags:literal $remembers:literal $ordered:literal $file:literal) => {
        text(concat!(
            "#!lua",
            $flags,
            "\nlocal REMEMBERS, ORDERED = ",
            $remembers,
            ", ",
            $ordered,
            "\n",
            include_str!("scripts/prelude.lua"),
            include_str!(concat!("scripts/", $file))
        ))
    };
}
macro_rules! script {
    (allow_oom $file:literal) => {
        whole!(" flags=allow-oom" "false" "false" $file)
    };
    (refused_at_maxmemory $file:literal) => {
        text(concat!("#!lua\n", include_str!(concat!("scripts/", $file))))
    };
    (bare $file:literal) => {
        text(concat!("#!lua flags=allow-oom\n", include_str!(concat!("scripts/", $file))))
    };
}
macro_rules! versions {
    (allow_oom $file:literal) => {
        versions!(" flags=allow-oom" $file)
    };
    ($file:literal) => {
        versions!("" $file)
    };
    ($flags:literal $file:literal) => {
        ScriptVariants([
            whole!($flags "false" "false" $file),
            whole!($flags "true" "false" $file),
            whole!($flags "false" "true" $file),
            whole!($flags "true" "true" $file),
        ])
    };
}

use std::sync::LazyLock;

#[cfg(not(feature = "test-util"))]
fn text(script: &str) -> Script {
    Script::new(script)
}

#[cfg(feature = "test-util")]
use shifted::text;
#[cfg(feature = "test-util")]
pub use shifted::{follow_clock, shift_clock};

/// A store whose clock differs from that of Redis: a message due in an hour can be stored an hour ago.
#[cfg(feature = "test-util")]
mod shifted {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicI64, Ordering};

    use redis::Script;

    /// The line that reads the clock. It stands in `prelude.lua` alone.
    const CLOCK_LINE: &str = "local time = redis.call('TIME')\n";

    static SECONDS: AtomicI64 = AtomicI64::new(0);
    static KEY: OnceLock<String> = OnceLock::new();

    /// Moves the store's clock by this many seconds, as every script and every answer of this process shows it.
    /// Call this before the store is first used.
    pub fn shift_clock(seconds: i64) {
        SECONDS.store(seconds, Ordering::Release);
    }

    /// Moves the store's clock by as many seconds as this key says at each call. Call this before the store is
    /// first used. This does not work on a cluster, because the key belongs to no partition.
    pub fn follow_clock(key: &str) {
        KEY.get_or_init(|| key.to_owned());
    }

    pub(in crate::store) fn text(script: &str) -> Script {
        let script = crate::mutants::script(script);
        if let Some(key) = KEY.get() {
            let shift =
                format!("time[1] = time[1] + (tonumber(redis.call('GET', '{key}') or '0'))");
            return Script::new(&script.replace(CLOCK_LINE, &format!("{CLOCK_LINE}{shift}\n")));
        }
        match SECONDS.load(Ordering::Acquire) {
            0 => Script::new(&script),
            by => Script::new(&script.replace(
                CLOCK_LINE,
                &format!("{CLOCK_LINE}time[1] = time[1] + {by}\n"),
            )),
        }
    }

    #[test]
    fn the_prelude_reads_the_clock_in_that_line_alone() {
        let prelude = include_str!("scripts/prelude.lua");
        assert_eq!(prelude.matches("'TIME'").count(), 1);
        let most = format!(
            "local BUNDLE_MESSAGES = {}\n",
            crate::domain::limits::BUNDLE_MESSAGES
        );
        assert!(prelude.contains(&most), "scripts know the same bound");
        assert!(prelude.contains(CLOCK_LINE));
    }
}

/// Stores bundles. Refused at `maxmemory`.
pub(in crate::store) static WRITE: LazyLock<ScriptVariants> =
    LazyLock::new(|| versions!("write.lua"));
/// Runs `write.lua` for a call that stores nothing: a cancel frees memory.
pub(in crate::store) static CANCEL: LazyLock<ScriptVariants> =
    LazyLock::new(|| versions!(allow_oom "write.lua"));
/// Stores the command's own message. Refused at `maxmemory`.
pub(in crate::store) static RESCHEDULE: LazyLock<ScriptVariants> =
    LazyLock::new(|| versions!("reschedule.lua"));
/// Moves a message that is already in the store.
pub(in crate::store) static MOVE: LazyLock<ScriptVariants> =
    LazyLock::new(|| versions!(allow_oom "reschedule.lua"));
pub(in crate::store) static CLAIM: LazyLock<ScriptVariants> =
    LazyLock::new(|| versions!(allow_oom "claim.lua"));
pub(in crate::store) static RELEASE_ROUTE: LazyLock<Script> =
    LazyLock::new(|| script!(bare "release_route.lua"));
pub(in crate::store) static FREE_FIELDS: LazyLock<Script> =
    LazyLock::new(|| script!(bare "free_fields.lua"));
pub(in crate::store) static SETTLE: LazyLock<ScriptVariants> =
    LazyLock::new(|| versions!(allow_oom "settle.lua"));
pub(in crate::store) static DIVIDE: LazyLock<ScriptVariants> =
    LazyLock::new(|| versions!(allow_oom "divide.lua"));
pub(in crate::store) static EXTEND: LazyLock<ScriptVariants> =
    LazyLock::new(|| versions!(allow_oom "extend.lua"));
pub(in crate::store) static GIVE_BACK: LazyLock<ScriptVariants> =
    LazyLock::new(|| versions!(allow_oom "give_back.lua"));
pub(in crate::store) static SWEEP: LazyLock<Script> =
    LazyLock::new(|| script!(allow_oom "sweep.lua"));
pub(in crate::store) static SCRUB: LazyLock<Script> =
    LazyLock::new(|| script!(allow_oom "scrub.lua"));
pub(in crate::store) static SHRINK: LazyLock<Script> =
    LazyLock::new(|| script!(allow_oom "shrink.lua"));
pub(in crate::store) static SCRUB_DEAD: LazyLock<Script> =
    LazyLock::new(|| script!(allow_oom "scrub_dead.lua"));
pub(in crate::store) static QUARANTINE: LazyLock<Script> =
    LazyLock::new(|| script!(bare "quarantine.lua"));
pub(in crate::store) static RECOUNT: LazyLock<Script> =
    LazyLock::new(|| script!(allow_oom "recount.lua"));
pub(in crate::store) static FIND: LazyLock<Script> = LazyLock::new(|| script!(bare "find.lua"));
pub(in crate::store) static TAKE_TOKENS: LazyLock<Script> =
    LazyLock::new(|| script!(bare "take_tokens.lua"));
pub(in crate::store) static FORGET_NAMES: LazyLock<Script> =
    LazyLock::new(|| script!(bare "forget_names.lua"));
pub(in crate::store) static REDRIVE: LazyLock<ScriptVariants> =
    LazyLock::new(|| versions!(allow_oom "redrive.lua"));
pub(in crate::store) static DROP_DEAD: LazyLock<Script> =
    LazyLock::new(|| script!(allow_oom "drop_dead.lua"));
pub(in crate::store) static HEARTBEAT: LazyLock<Script> =
    LazyLock::new(|| script!(bare "heartbeat.lua"));
/// Appends to a trail. Refused at `maxmemory`: a trail must not take the memory of messages.
pub(in crate::store) static TRAIL: LazyLock<Script> =
    LazyLock::new(|| script!(refused_at_maxmemory "trail.lua"));
/// Tries the rights of a connection's user.
pub(in crate::store) static RIGHTS: LazyLock<Script> = LazyLock::new(|| script!(bare "rights.lua"));
pub(in crate::store) static RAISE_OFFSET: LazyLock<Script> =
    LazyLock::new(|| script!(bare "raise_offset.lua"));
