//! The GPUs there are: names as NVML writes them, memory and watts.
//!
//! Must not hold state.

/// A kind of GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Board {
    /// How a fleet's file calls it.
    pub key: &'static str,
    /// `modelName`, as NVML calls it.
    pub model_name: &'static str,
    /// All of its memory, MiB, as `nvidia-smi` shows it.
    pub memory_mib: f64,
    /// Watts while no process holds it.
    pub bare_w: f64,
    /// Watts while a process holds it and nothing runs.
    pub context_w: f64,
    /// Watts at its limit.
    pub limit_w: f64,
}

const fn board(
    key: &'static str,
    model_name: &'static str,
    memory_mib: f64,
    [bare_w, context_w, limit_w]: [f64; 3],
) -> Board {
    Board { key, model_name, memory_mib, bare_w, context_w, limit_w }
}

/// Limits are the vendor's. Idle watts with a context: 26 to 50 W above bare ones on A100 and H100
/// and 66 W on an L40S [arXiv 2605.23918], whatever the memory held. Measured bare: T4 17 W, A100
/// 66 W, H200 80 W; the other bare ones are not confirmed, so tests must not depend on them.
const BOARDS: [Board; 9] = [
    board("t4", "Tesla T4", 15_360.0, [17.0, 28.0, 70.0]),
    board("l4", "NVIDIA L4", 23_034.0, [15.0, 28.0, 72.0]),
    board("a10", "NVIDIA A10", 23_028.0, [18.0, 57.0, 150.0]),
    board("l40s", "NVIDIA L40S", 46_068.0, [35.0, 101.0, 350.0]),
    board("a100-40gb", "NVIDIA A100-SXM4-40GB", 40_960.0, [66.0, 104.0, 400.0]),
    board("a100-80gb", "NVIDIA A100-SXM4-80GB", 81_920.0, [66.0, 104.0, 400.0]),
    board("h100-80gb", "NVIDIA H100 80GB HBM3", 81_559.0, [70.0, 108.0, 700.0]),
    board("h200", "NVIDIA H200", 143_771.0, [80.0, 118.0, 700.0]),
    board("b200", "NVIDIA B200", 183_359.0, [125.0, 163.0, 1_000.0]),
];

impl Board {
    /// The GPU of that key or of that model name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Board> {
        BOARDS.iter().find(|board| board.key == name || board.model_name == name)
    }

    /// All keys, for an error message.
    pub fn keys() -> impl Iterator<Item = &'static str> {
        BOARDS.iter().map(|board| board.key)
    }

    /// Watts while it draws that share of what its limit leaves above idle.
    #[must_use]
    pub fn watts(&self, held: bool, draw: f64) -> f64 {
        let idle_w = if held { self.context_w } else { self.bare_w };
        idle_w + (self.limit_w - idle_w) * draw
    }
}

/// What a MIG profile such as `3g.40gb` is of its board.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Slice {
    /// Its compute, of the board's: sevenths.
    pub(super) compute: f64,
    /// Its memory, MiB: 0.95 of the round number, as the 4,864 MiB of 1g.5gb are.
    pub(super) memory_mib: f64,
}

impl Slice {
    /// Reads the name of a profile; `None` if it is none.
    pub(super) fn parse(profile: &str) -> Option<Slice> {
        let (compute, memory) = profile.split_once("g.")?;
        let compute: u8 = compute.parse().ok().filter(|sevenths| (1..=7).contains(sevenths))?;
        let gigabytes: u16 = memory.strip_suffix("gb")?.parse().ok().filter(|gb| *gb > 0)?;
        let memory_mib = f64::from(gigabytes) * 1_024.0 * 0.95;
        Some(Slice { compute: f64::from(compute) / 7.0, memory_mib })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_is_found_by_its_key_and_by_its_name() {
        let h100 = Board::find("h100-80gb").unwrap();
        assert_eq!(Board::find("NVIDIA H100 80GB HBM3"), Some(h100));
        assert_eq!(Board::find("h1000"), None);
        assert!(BOARDS.iter().all(|b| b.bare_w < b.context_w && b.context_w < b.limit_w));
    }

    #[test]
    fn watts_run_from_idle_to_the_limit() {
        let t4 = Board::find("t4").unwrap();
        let watts = [t4.watts(false, 0.0), t4.watts(true, 0.0), t4.watts(true, 1.0)];
        assert_eq!(watts.map(f64::to_bits), [17.0, 28.0, 70.0].map(f64::to_bits));
    }

    #[test]
    fn a_mig_profile_says_its_compute_and_its_memory() {
        let slice = Slice::parse("1g.5gb").unwrap();
        assert!(
            (slice.memory_mib - 4_864.0).abs() < 1e-9 && (slice.compute * 7.0 - 1.0).abs() < 1e-9
        );
        for none in ["", "g.", "0g.5gb", "8g.5gb", "1g.0gb", "1g.5", "1c.1g.5gb", "1g.5gb+me"] {
            assert_eq!(Slice::parse(none), None, "{none}");
        }
    }
}
