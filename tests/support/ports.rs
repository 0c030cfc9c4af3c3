//! Free ports of 127.0.0.1.
//!
//! They come from below the range that the system hands to outgoing connections, in blocks. A block
//! belongs to the process that listens on its first port, so two test binaries never hand out the same
//! port, and a server that is down for a while finds its port still free.

use std::net::TcpListener;
use std::sync::{LazyLock, Mutex};

const FIRST: u16 = 10_000;
const LAST: u16 = 32_000;
const BLOCK: u16 = 50;

struct Blocks {
    /// Listeners on the first port of each block of ours; never read, only held.
    guards: Vec<TcpListener>,
    next: u16,
    end: u16,
}

static BLOCKS: LazyLock<Mutex<Blocks>> = LazyLock::new(|| {
    Mutex::new(Blocks {
        guards: Vec::new(),
        next: 0,
        end: 0,
    })
});

/// A port that nobody listens on and that no other test process will take.
pub fn free() -> u16 {
    let mut blocks = BLOCKS.lock().expect("ports");
    loop {
        if blocks.next == blocks.end {
            let guard = claim_block();
            let base = guard.local_addr().expect("a bound listener").port();
            blocks.guards.push(guard);
            (blocks.next, blocks.end) = (base + 1, base + BLOCK);
        }
        let port = blocks.next;
        blocks.next += 1;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn claim_block() -> TcpListener {
    let count = (LAST - FIRST) / BLOCK;
    let start = (std::process::id() % u32::from(count)) as u16;
    (0..count)
        .map(|step| FIRST + (start + step) % count * BLOCK)
        .find_map(|base| TcpListener::bind(("127.0.0.1", base)).ok())
        .expect("no free block of ports between 10000 and 32000")
}
