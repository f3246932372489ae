//! Randomness by name: every random choice comes from a named child of one seed, so that adding a
//! choice in one place never changes the choices made elsewhere.

/// A 64-bit seed from which named children are derived. Hashing is FNV-1a followed by the `SplitMix64`
/// finaliser (Steele, Lea and Flood, 2014): stable across releases and platforms, not cryptographic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub u64);

impl Seed {
    /// The child seed for `name`.
    #[must_use]
    pub fn child(self, name: &str) -> Self {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ self.0;
        for byte in name.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Self(mix(hash))
    }

    /// A stream of numbers from this seed.
    pub fn stream(self) -> Stream {
        Stream { state: self.0 }
    }
}

/// A stream of pseudo-random numbers (`SplitMix64`).
#[derive(Debug, Clone)]
pub struct Stream {
    state: u64,
}

impl Stream {
    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number below `bound`; 0 when `bound` is 0. The bias is below 2⁻³² for bounds below 2³².
    pub fn below(&mut self, bound: u64) -> u64 {
        u64::try_from((u128::from(self.next_u64()) * u128::from(bound)) >> 64).unwrap_or(0)
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_independent_and_stable() {
        assert_eq!(Seed(42).child("arrivals"), Seed(42).child("arrivals"));
        assert_ne!(Seed(42).child("arrivals"), Seed(42).child("failures"));
        assert_ne!(Seed(42).child("arrivals"), Seed(43).child("arrivals"));
    }

    #[test]
    fn below_stays_below() {
        let mut stream = Seed(1).stream();
        assert!((0..1000).all(|_| stream.below(7) < 7));
        assert_eq!(stream.below(0), 0);
    }
}
