//! Jitter: how long a due time is put off, so that what falls on one moment spreads. Pure, and the same each time
//! for the same message: one that is read again falls on the same moment again.

/// Another one than where messages live by: the two choices must know nothing of each other.
const SEED: u64 = 1;

/// A time from 0 to `most_ms`, both included, chosen by what tells the message apart.
pub fn of(most_ms: i64, a: &[u8], b: &[u8]) -> i64 {
    let mut hash = xxhash_rust::xxh3::Xxh3::with_seed(SEED);
    hash.update(a);
    hash.update(&[0]);
    hash.update(b);
    (hash.digest() % (most_ms.max(0) as u64 + 1)) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_each_time_and_spreads_over_all_of_it() {
        assert_eq!(of(0, b"orders", b"a"), 0);
        assert_eq!(of(-5, b"orders", b"a"), 0);
        let mut seen = [0u32; 10];
        for n in 0..10_000u64 {
            let put_off = of(9, b"orders", &n.to_be_bytes());
            assert_eq!(put_off, of(9, b"orders", &n.to_be_bytes()));
            seen[put_off as usize] += 1;
        }
        assert!(seen.iter().all(|&n| (850..1150).contains(&n)), "{seen:?}");
    }
}
