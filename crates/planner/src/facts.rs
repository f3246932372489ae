//! What the planner is told.

use regatta_types::Timestamp;
use std::collections::BTreeMap;
use std::fmt;

/// Amounts of every resource that is planned, as integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Amounts {
    /// GPUs, in thousandths of a device.
    pub gpu_milli: i64,
    /// CPU, in thousandths of a core.
    pub cpu_milli: i64,
    /// Memory, in bytes.
    pub memory_bytes: i64,
    /// Pods.
    pub pods: i64,
}

impl Amounts {
    const ZERO: Self = Self { gpu_milli: 0, cpu_milli: 0, memory_bytes: 0, pods: 0 };

    fn zip(self, other: Self, f: impl Fn(i64, i64) -> i64) -> Self {
        Self {
            gpu_milli: f(self.gpu_milli, other.gpu_milli),
            cpu_milli: f(self.cpu_milli, other.cpu_milli),
            memory_bytes: f(self.memory_bytes, other.memory_bytes),
            pods: f(self.pods, other.pods),
        }
    }

    /// The sum, saturating.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.zip(other, i64::saturating_add)
    }

    /// The difference; negative where `other` has more.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.zip(other, i64::saturating_sub)
    }

    /// This many times as much, saturating.
    #[must_use]
    pub fn times(self, count: i64) -> Self {
        self.zip(Self::ZERO, |amount, _| amount.saturating_mul(count))
    }

    /// The larger of each.
    #[must_use]
    pub fn upper(self, other: Self) -> Self {
        self.zip(other, std::cmp::Ord::max)
    }

    /// The smaller of each.
    #[must_use]
    pub fn lower(self, other: Self) -> Self {
        self.zip(other, std::cmp::Ord::min)
    }

    /// Only the resources that `request` asks for; the others become zero.
    #[must_use]
    pub fn only_asked(self, request: Self) -> Self {
        self.zip(request, |amount, asked| if asked > 0 { amount } else { 0 })
    }

    /// How many times `request` fits into this. Only what is asked for counts; nothing asked for fits for ever.
    pub fn holds(self, request: Self) -> i64 {
        let one = |have: i64, want: i64| if want <= 0 { i64::MAX } else { have.max(0) / want };
        one(self.gpu_milli, request.gpu_milli)
            .min(one(self.cpu_milli, request.cpu_milli))
            .min(one(self.memory_bytes, request.memory_bytes))
            .min(one(self.pods, request.pods))
    }

    /// Whether `request` fits into this.
    pub fn covers(self, request: Self) -> bool {
        self.holds(request) >= 1
    }
}

impl fmt::Display for Amounts {
    /// In people's units: `2 GPUs, 4 CPU, 8 GiB`; what is zero is left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.told_of(*self))
    }
}

impl Amounts {
    /// In people's units, the resources of which `of` has some: `0 GPUs, 4 CPU` where it has GPUs and CPU.
    pub fn told_of(self, of: Self) -> String {
        let mut parts = Vec::new();
        if of.gpu_milli != 0 {
            let unit = if self.gpu_milli == 1000 { "GPU" } else { "GPUs" };
            parts.push(format!("{} {unit}", thousandths(self.gpu_milli)));
        }
        if of.cpu_milli != 0 {
            parts.push(format!("{} CPU", thousandths(self.cpu_milli)));
        }
        if of.memory_bytes != 0 {
            parts.push(bytes(self.memory_bytes));
        }
        if parts.is_empty() {
            parts.push(if self.pods == 1 { "1 pod".to_owned() } else { format!("{} pods", self.pods) });
        }
        parts.join(", ")
    }
}

pub(crate) fn thousandths(milli: i64) -> String {
    let (whole, part) = (milli / 1000, (milli % 1000).abs());
    if part == 0 { whole.to_string() } else { format!("{whole}.{part:03}").trim_end_matches('0').to_owned() }
}

pub(crate) fn bytes(bytes: i64) -> String {
    const UNITS: [(&str, i64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (unit, size) in UNITS {
        if bytes.abs() >= size {
            let tenths = i128::from(bytes) * 10 / i128::from(size);
            let (whole, part) = (tenths / 10, (tenths % 10).abs());
            return if part == 0 { format!("{whole} {unit}") } else { format!("{whole}.{part} {unit}") };
        }
    }
    format!("{bytes} bytes")
}

/// Whether new gangs may be placed on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedulable {
    /// They may.
    Yes,
    /// They may not, for now.
    No,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// Name.
    pub name: String,
    /// What gangs may use of it, all in all.
    pub allocatable: Amounts,
    /// Labels, for selectors.
    pub labels: BTreeMap<String, String>,
    /// GPU model, in lower case.
    pub gpu_model: Option<String>,
    /// Whether new gangs may be placed on it.
    pub schedulable: Schedulable,
}

/// Whether gangs of a queue may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueState {
    /// They may.
    Open,
    /// They wait; what runs goes on.
    Stopped,
}

/// A queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueFacts {
    /// Name.
    pub name: String,
    /// Whether its gangs may start.
    pub state: QueueState,
}

/// Identity of a gang: stable over time and unique.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GangId(pub String);

/// Members of a gang that are alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemberGroup {
    /// Role.
    pub role: String,
    /// How many.
    pub count: u32,
    /// What each one takes.
    pub request: Amounts,
    /// GPU models that will do, in order of preference; any when empty.
    pub gpu_models: Vec<String>,
    /// Labels that the node must have.
    pub node_selector: BTreeMap<String, String>,
}

/// What must start together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GangFacts {
    /// Identity.
    pub id: GangId,
    /// Name for people: `namespace/name`.
    pub name: String,
    /// Queue it waits in.
    pub queue: String,
    /// Higher is served first.
    pub priority: i32,
    /// Earlier is served first.
    pub submitted: Timestamp,
    /// Its members; slots are numbered in this order.
    pub members: Vec<MemberGroup>,
}

impl GangFacts {
    /// Members in all.
    pub fn size(&self) -> u32 {
        self.members.iter().fold(0, |sum, group| sum.saturating_add(group.count))
    }
}

/// A change of the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// A node is there, or has changed.
    NodeUpsert(NodeFacts),
    /// A node is gone. What was placed on it stays booked until its gang says otherwise.
    NodeRemove(String),
    /// A queue is there, or has changed.
    QueueUpsert(QueueFacts),
    /// A queue is gone.
    QueueRemove(String),
    /// A gang is there, or has changed. A new one waits.
    GangUpsert(GangFacts),
    /// A gang is gone, with all it held.
    GangRemove(GangId),
    /// A gang holds these nodes, one for each slot, members in order.
    GangPlaced {
        /// Which.
        id: GangId,
        /// The node of each slot.
        nodes: Vec<String>,
    },
    /// A gang holds nothing and waits.
    GangUnplaced(GangId),
    /// Something that is not planned here uses a node.
    ForeignUpsert {
        /// Its identity.
        id: String,
        /// The node.
        node: String,
        /// How much.
        amounts: Amounts,
    },
    /// It is gone.
    ForeignRemove {
        /// Its identity.
        id: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_like_people_say_them() {
        let check = |amounts: Amounts, expected: &str| assert_eq!(amounts.to_string(), expected);
        check(Amounts { gpu_milli: 1000, ..Amounts::default() }, "1 GPU");
        check(
            Amounts { gpu_milli: 2500, cpu_milli: 500, memory_bytes: 3 << 29, pods: 1 },
            "2.5 GPUs, 0.5 CPU, 1.5 GiB",
        );
        check(Amounts { memory_bytes: 100, ..Amounts::default() }, "100 bytes");
        check(Amounts { pods: 1, ..Amounts::default() }, "1 pod");
    }

    #[test]
    fn only_what_is_asked_for_counts() {
        let have = Amounts { gpu_milli: -1000, cpu_milli: 4000, memory_bytes: 100, pods: 10 };
        let check = |request: Amounts, expected| assert_eq!(have.holds(request), expected);
        check(Amounts { cpu_milli: 1500, ..Amounts::default() }, 2);
        check(Amounts { cpu_milli: 1, pods: 1, ..Amounts::default() }, 10);
        check(Amounts { gpu_milli: 1, ..Amounts::default() }, 0);
        check(Amounts::default(), i64::MAX);
    }
}
