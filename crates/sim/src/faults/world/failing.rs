//! The faults of the world, and what follows from them.

use super::{Event, MS, World};
use crate::faults::cluster::Life;
use crate::faults::plan::Fault;
use crate::faults::process::Process;
use crate::faults::script::Script;
use std::collections::VecDeque;
use tidegate_wire::Handle;

/// A supervisor's pause before it starts a forwarder whose mount is dead.
const RESTART: u64 = 20 * MS;

impl World {
    pub(super) fn fault(&mut self, fault: Fault) -> Result<(), String> {
        let now = self.events.now();
        match fault {
            Fault::Kill {
                forwarder,
                back_after,
            } => self.kill(forwarder, back_after),
            Fault::Pause { forwarder, pause } => {
                if let Some(process) = &self.processes[forwarder]
                    && !self.paused.contains_key(&forwarder)
                {
                    self.paused.insert(forwarder, VecDeque::new());
                    self.events.push(now + pause, Event::Resume(process.life));
                }
            }
            Fault::Cut { number } => {
                let links = self.network.open_links();
                if !links.is_empty() {
                    self.cut(links[(number % links.len() as u64) as usize]);
                }
            }
            Fault::Partition { forwarder, pause } => self.partition(forwarder, pause),
            Fault::LoseLock { number } => {
                if let Some(shared) = self.seats.shared() {
                    shared.lose_lock(number, now);
                }
            }
            Fault::NodeDeath {
                forwarder,
                back_after,
            } => self.node_dies(forwarder, back_after)?,
        }
        Ok(())
    }

    fn kill(&mut self, forwarder: usize, back_after: Option<u64>) {
        let now = self.events.now();
        self.paused.remove(&forwarder);
        let refused = self.deferred_heals.remove(&forwarder) == Some(true);
        let Some(process) = self.processes[forwarder].take() else {
            return;
        };
        process.kill(&mut self.seats, now, refused);
        for link in self.links_of(forwarder) {
            self.cut(link);
        }
        if let Some(after) = back_after {
            self.events.push(now + after, Event::Start(forwarder));
        }
    }

    fn links_of(&self, forwarder: usize) -> Vec<u64> {
        let mut links = self.network.open_links();
        links.retain(|link| self.network.ends(*link).1 == forwarder);
        links
    }

    /// Cuts a node off from the back end.
    fn partition(&mut self, forwarder: usize, pause: u64) {
        let now = self.events.now();
        let Some(shared) = self.seats.shared() else {
            return;
        };
        let limit_ns = shared.options.limit_ns;
        if let Some(cut) = shared.cut(forwarder, now) {
            self.events
                .push(now + limit_ns, Event::Limit(forwarder, cut));
            self.events.push(now + pause, Event::Heal(forwarder, cut));
        }
    }

    /// Kills a node at once: neither the back end nor the clients receive a sign of it.
    fn node_dies(&mut self, forwarder: usize, back_after: Option<u64>) -> Result<(), String> {
        let now = self.events.now();
        self.paused.remove(&forwarder);
        let refused = self.deferred_heals.remove(&forwarder) == Some(true);
        let Some(process) = self.processes[forwarder].take() else {
            return Ok(());
        };
        let Some(shared) = self.seats.shared() else {
            return Ok(());
        };
        let limit_ns = shared.options.limit_ns;
        let cut = shared.cut_for_good(forwarder);
        process.kill(&mut self.seats, now, refused);
        for link in self.links_of(forwarder) {
            self.stalls(link);
        }
        self.events
            .push(now + limit_ns, Event::Limit(forwarder, cut));
        let shared = self.seats.shared().expect("looked for above");
        let lost = self.disk.lose(shared.mount(forwarder));
        shared.mount_anew(forwarder);
        self.tell_loss(&lost)?;
        if let Some(after) = back_after {
            self.events.push(now + after, Event::Heal(forwarder, cut));
            self.events.push(now + after, Event::Start(forwarder));
        }
        Ok(())
    }

    /// Lets the back end give a node up.
    pub(super) fn limit(&mut self, forwarder: usize, cut: u64) -> Result<(), String> {
        let Some(shared) = self.seats.shared() else {
            return Ok(());
        };
        if !shared.is_in(forwarder, cut) {
            return Ok(());
        }
        if let Some(dropped) = self.deferred_heals.get_mut(&forwarder) {
            *dropped = true;
        }
        let lost = shared.drop_node(forwarder, &self.disk);
        self.tell_loss(&lost)
    }

    /// Lets a node reach the back end again.
    pub(super) fn heal(&mut self, forwarder: usize, cut: u64) -> Result<(), String> {
        let now = self.events.now();
        let Some(shared) = self.seats.shared().filter(|it| it.is_in(forwarder, cut)) else {
            return Ok(());
        };
        let evicted = shared.has_given_up(forwarder) && shared.evicts();
        if evicted {
            // The mount is dead: the process ends, its supervisor mounts anew.
            self.kill(forwarder, Some(RESTART));
        }
        let process = self.processes[forwarder].as_mut();
        let alive = process.as_ref().map(|process| process.life);
        let Some(shared) = self.seats.shared() else {
            return Ok(());
        };
        let dropped = shared.heal(forwarder, alive);
        if evicted {
            shared.mount_anew(forwarder);
        }
        if self.paused.contains_key(&forwarder) {
            // What hangs goes on in the kernel; the process hears of it when it runs again.
            self.deferred_heals.insert(forwarder, dropped);
        } else if let Some(process) = process {
            process.heal(now, dropped, &mut self.seats);
            self.pump_forwarder(forwarder, Vec::new());
        }
        Ok(())
    }

    /// Gives the programs' models what their files hold after a loss, because no answer tells them.
    fn tell_loss(&mut self, lost: &[Handle]) -> Result<(), String> {
        for handle in lost {
            let bytes = self.disk.contents_of(*handle);
            let scripts = self.clients.iter_mut().flat_map(|c| &mut c.scripts);
            for script in scripts {
                script.lost(*handle, bytes.as_deref().unwrap_or_default())?;
            }
        }
        Ok(())
    }

    pub(super) fn start(&mut self, forwarder: usize) {
        if self.processes[forwarder].is_some() {
            return;
        }
        self.lives[forwarder] += 1;
        let life = (forwarder, self.lives[forwarder]);
        let rng = self.rng.split();
        let config = self.config(forwarder);
        let process = Process::start(life, config, &self.disk, &mut self.seats, rng);
        self.processes[forwarder] = Some(process);
        let now = self.events.now();
        self.events.push(now, Event::WakeForwarder(life));
        self.events.push(now, Event::Look(life));
    }

    pub(super) fn resume(&mut self, life: Life) -> Result<(), String> {
        let lives = self.processes[life.0]
            .as_ref()
            .is_some_and(|p| p.life == life);
        if !lives {
            return Ok(());
        }
        let waiting = self.paused.remove(&life.0).unwrap_or_default();
        if let (Some(dropped), Some(process)) = (
            self.deferred_heals.remove(&life.0),
            &mut self.processes[life.0],
        ) {
            process.heal(self.events.now(), dropped, &mut self.seats);
            self.pump_forwarder(life.0, Vec::new());
        }
        for event in waiting {
            self.happen(event)?;
        }
        Ok(())
    }

    /// Checks what must hold at every moment.
    pub(super) fn check(&mut self) -> Result<(), String> {
        if let Some(shared) = self.seats.shared()
            && let Some(fault) = shared.faults.first()
        {
            return Err(fault.clone());
        }
        let scripts = self.clients.iter().flat_map(|c| &c.scripts);
        let owners: Vec<u64> = scripts.filter_map(Script::holds_lock).collect();
        match owners.len() {
            0 | 1 => Ok(()),
            _ => Err(format!("programs {owners:?} have the lock of the counter")),
        }
    }
}
