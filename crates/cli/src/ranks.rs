//! Which ranks a job's slots have, by the rule that the operator launches them by. Pure.

use regatta_types::job::Job;
use regatta_types::launch::{RoleLaunch, of_role};

/// The ranks of one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotRanks {
    pub(crate) role: String,
    pub(crate) slot: u32,
    pub(crate) first: u32,
    /// How many processes write a log of their own; more ranks than these share theirs.
    pub(crate) procs: u32,
    /// How many ranks there are in it.
    pub(crate) ranks: u32,
}

impl SlotRanks {
    pub(crate) fn holds(&self, rank: u32) -> bool {
        (self.first..self.first.saturating_add(self.ranks)).contains(&rank)
    }
}

/// The slots of a job in the order of their ranks.
pub(crate) fn of_job(job: &Job) -> Vec<SlotRanks> {
    let mut slots = Vec::new();
    let mut first = 0_u32;
    for role in &job.spec.roles {
        let RoleLaunch { procs, ranks, .. } = of_role(job, role);
        for slot in 0..role.replicas {
            slots.push(SlotRanks { role: role.name.clone(), slot, first, procs, ranks });
            first = first.saturating_add(ranks);
        }
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_types::job::Role;
    use regatta_types::pod::Container;

    #[test]
    fn slots_share_the_ranks_in_order() {
        let check =
            |command: &[&str], gpus: Option<&str>, procs: Option<u32>, expected: &[(u32, u32, u32)]| {
                let mut container = Container {
                    command: command.iter().map(|w| (*w).to_owned()).collect(),
                    ..Container::default()
                };
                if let Some(gpus) = gpus {
                    container
                        .resources
                        .limits
                        .insert(regatta_types::labels::GPU_RESOURCE.into(), gpus.parse().unwrap());
                }
                let mut role = Role { replicas: 2, procs_per_node: procs, ..Role::default() };
                role.template.spec.containers.push(container);
                let mut job = Job::default();
                job.spec.roles.push(role);
                let seen: Vec<_> =
                    of_job(&job).iter().map(|slot| (slot.first, slot.procs, slot.ranks)).collect();
                assert_eq!(seen, expected, "{command:?}");
            };
        check(&["python", "x.py"], None, None, &[(0, 1, 1), (1, 1, 1)]);
        check(&["python", "x.py"], Some("8"), None, &[(0, 1, 1), (1, 1, 1)]);
        check(&["python", "x.py"], None, Some(2), &[(0, 2, 2), (2, 2, 2)]);
        check(&["torchrun", "x.py"], Some("8"), None, &[(0, 1, 8), (8, 1, 8)]);
        check(&["torchrun", "x.py"], None, Some(4), &[(0, 1, 4), (4, 1, 4)]);
        let mut job = Job::default();
        job.spec.roles = vec![
            Role { name: "leader".into(), ..Role::default() },
            Role { replicas: 2, procs_per_node: Some(2), ..Role::default() },
        ];
        let slots = of_job(&job);
        let leader = slots.iter().find(|slot| slot.holds(0)).unwrap();
        let last = slots.iter().find(|slot| slot.holds(4)).unwrap();
        assert_eq!((leader.role.as_str(), last.role.as_str(), last.slot), ("leader", "worker", 1));
    }
}
