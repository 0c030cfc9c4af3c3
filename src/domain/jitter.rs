//! Jitter: delays due times a little, so that messages due at one moment spread. Pure. A message that is read again
//! gets the same delay.

/// Differs from the seed of the placement, so that the two choices are independent.
const JITTER_SEED: u64 = 1;

/// A delay from 0 to `most_ms`, both included, derived from what identifies the message.
pub fn of(most_ms: i64, a: &[u8], b: &[u8]) -> i64 {
    let mut hash = xxhash_rust::xxh3::Xxh3::with_seed(JITTER_SEED);
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
