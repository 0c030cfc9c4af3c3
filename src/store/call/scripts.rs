//! The scripts, as constants: each is the prelude and its own file under a shebang that says whether it
//! may run at `maxmemory`.

use redis::Script;

/// What a call concerns besides what all do: only such calls are given the keys for it, so that all others pay
/// nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct With {
    /// A route that remembers what it delivered.
    pub(in crate::store) remembers: bool,
    /// A route whose keys leave in order.
    pub(in crate::store) ordered: bool,
}

/// A script for each of these.
pub(in crate::store) struct Versions([Script; 4]);

impl Versions {
    /// The one for a call.
    pub(in crate::store) fn of(&self, with: With) -> &Script {
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
        Versions([
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

/// A store whose clock is elsewhere than Redis's: what is due in an hour can be stored an hour ago.
#[cfg(feature = "test-util")]
mod shifted {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicI64, Ordering};

    use redis::Script;

    /// The line that reads it, in `prelude.lua` alone.
    const READS: &str = "local time = redis.call('TIME')\n";

    static SECONDS: AtomicI64 = AtomicI64::new(0);
    static KEY: OnceLock<String> = OnceLock::new();

    /// Moves the store's clock, as every script and every answer of this process has it, by so many
    /// seconds. To be called before the store is first used.
    pub fn shift_clock(seconds: i64) {
        SECONDS.store(seconds, Ordering::Release);
    }

    /// From here on the store's clock shows as many seconds more as this key says, at each call. To be called
    /// before the store is first used; not for a cluster, for the key is nobody's.
    pub fn follow_clock(key: &str) {
        KEY.get_or_init(|| key.to_owned());
    }

    pub(in crate::store) fn text(script: &str) -> Script {
        let script = crate::mutants::script(script);
        if let Some(key) = KEY.get() {
            let shift = format!("time[1] = time[1] + (tonumber(redis.call('GET', '{key}') or '0'))");
            return Script::new(&script.replace(READS, &format!("{READS}{shift}\n")));
        }
        match SECONDS.load(Ordering::Acquire) {
            0 => Script::new(&script),
            by => Script::new(&script.replace(READS, &format!("{READS}time[1] = time[1] + {by}\n"))),
        }
    }

    #[test]
    fn the_prelude_reads_the_clock_in_that_line_alone() {
        let prelude = include_str!("scripts/prelude.lua");
        assert_eq!(prelude.matches("'TIME'").count(), 1);
        assert!(prelude.contains(READS));
    }
}

/// Stores; refused at `maxmemory`.
pub(in crate::store) static WRITE: LazyLock<Versions> = LazyLock::new(|| versions!("write.lua"));
/// The same for a call that stores nothing: cancels free memory.
pub(in crate::store) static CANCEL: LazyLock<Versions> = LazyLock::new(|| versions!(allow_oom "write.lua"));
/// Stores the command's own message; refused at `maxmemory`.
pub(in crate::store) static RESCHEDULE: LazyLock<Versions> = LazyLock::new(|| versions!("reschedule.lua"));
/// Moves a message that is in the store already.
pub(in crate::store) static MOVE: LazyLock<Versions> =
    LazyLock::new(|| versions!(allow_oom "reschedule.lua"));
pub(in crate::store) static CLAIM: LazyLock<Versions> = LazyLock::new(|| versions!(allow_oom "claim.lua"));
pub(in crate::store) static RELEASE: LazyLock<Script> = LazyLock::new(|| script!(bare "release.lua"));
pub(in crate::store) static UNHOLD: LazyLock<Script> = LazyLock::new(|| script!(bare "unhold.lua"));
pub(in crate::store) static SETTLE: LazyLock<Versions> = LazyLock::new(|| versions!(allow_oom "settle.lua"));
pub(in crate::store) static DIVIDE: LazyLock<Versions> = LazyLock::new(|| versions!(allow_oom "divide.lua"));
pub(in crate::store) static HOLD: LazyLock<Versions> = LazyLock::new(|| versions!(allow_oom "hold.lua"));
pub(in crate::store) static GIVE_BACK: LazyLock<Versions> =
    LazyLock::new(|| versions!(allow_oom "give_back.lua"));
pub(in crate::store) static SWEEP: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "sweep.lua"));
pub(in crate::store) static AUDIT: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "audit.lua"));
pub(in crate::store) static GRAVES: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "graves.lua"));
pub(in crate::store) static QUARANTINE: LazyLock<Script> = LazyLock::new(|| script!(bare "quarantine.lua"));
pub(in crate::store) static RECOUNT: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "recount.lua"));
pub(in crate::store) static LOOK: LazyLock<Script> = LazyLock::new(|| script!(bare "look.lua"));
pub(in crate::store) static LEASE: LazyLock<Script> = LazyLock::new(|| script!(bare "lease.lua"));
pub(in crate::store) static TRIM: LazyLock<Script> = LazyLock::new(|| script!(bare "trim.lua"));
pub(in crate::store) static REDRIVE: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "redrive.lua"));
pub(in crate::store) static DROP: LazyLock<Script> = LazyLock::new(|| script!(allow_oom "drop.lua"));
pub(in crate::store) static BEAT: LazyLock<Script> = LazyLock::new(|| script!(bare "beat.lua"));
pub(in crate::store) static MARK: LazyLock<Script> = LazyLock::new(|| script!(bare "mark.lua"));
