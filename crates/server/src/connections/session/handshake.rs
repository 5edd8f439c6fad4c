//! What a session of another node says and hears before its hello, and how long that holds.

use super::super::doors::Whose;
use super::super::site_secrets::Valid;
use super::super::{RequestSink, ToLoop};
use super::Session;
use crate::clock::wall_s;
use tidegate_net::{Greeting, Refusal, SiteId};
use tidegate_wire::{Grant, Op, Role};
use tracing::{debug, info};

/// Why the session of a ticket ends: its client comes again with the next one.
pub(in super::super) const TICKET_ENDED: &str = "its ticket has ended";

/// What the client has proved.
pub(super) struct Proof {
    /// By which secret of the site.
    site: SiteId,
    grant: Grant,
}

impl Session {
    /// Answers what a client of another node says first. An error says why the session must end.
    pub(super) fn greeting_came(
        &mut self,
        sink: &mut RequestSink,
        greeting: &Greeting,
    ) -> Result<(), String> {
        if let Some(unconfirmed) = self.unconfirmed.take() {
            let (confirmation, site, grant) = *unconfirmed;
            return match confirmation.is_in(greeting) {
                true => {
                    self.proved(sink, site, grant);
                    Ok(())
                }
                false => self.turn_away(Refusal::Secret),
            };
        }
        let policy = &sink.policy;
        if greeting.credential().is_some() {
            let asked = match (&policy.secrets, &policy.desk) {
                (Some(secrets), Some(desk)) => {
                    let valid = secrets.valid(sink.now);
                    desk.ask(&self.stream, &self.whose, greeting, valid)
                }
                _ => Err(Refusal::NoMunge),
            };
            // The desk answers, and the client ends the connection; or the time for a hello does.
            return asked.or_else(|refusal| self.turn_away(refusal));
        }
        let accepted = match &policy.secrets {
            Some(secrets) => {
                let valid = secrets.valid(sink.now);
                let (sites, least) = (&valid.sites, policy.encryption);
                let accepted = tidegate_net::accept(sites, least, wall_s(), greeting);
                accepted.and_then(|it| match valid.revokes(&it.grant) {
                    true => Err(Refusal::Revoked),
                    false => Ok(it),
                })
            }
            None => Err(Refusal::Insecure),
        };
        match accepted {
            Ok(accepted) => {
                self.greet(&accepted.answer)?;
                match accepted.channel {
                    Ok(channel) => {
                        self.stream.protect(channel);
                        self.proved(sink, accepted.site, accepted.grant);
                    }
                    Err(confirmation) => {
                        let unconfirmed = (confirmation, accepted.site, accepted.grant);
                        self.unconfirmed = Some(Box::new(unconfirmed));
                        self.reader.expect_greeting();
                    }
                }
                Ok(())
            }
            Err(refusal) => self.turn_away(refusal),
        }
    }

    /// Notes the first frame, and for whom the session can speak. False if the session ends.
    pub(super) fn hello_came(&mut self, op: &Op) -> Result<bool, String> {
        let Op::Hello(hello) = op else {
            return Err("the first frame is no hello".to_string());
        };
        self.greeted = true;
        if self.unproved {
            self.turn_away_with("hello refused: no secret", Refusal::Missing)?;
            return Ok(false);
        }
        self.turns_of = match (&self.whose, &self.proof) {
            (Whose::Own, _) => None,
            (Whose::User(uid), _) => Some(*uid),
            (Whose::Node(_), Some(proof)) => match proof.grant.role {
                Role::User { uid, .. } => Some(uid),
                Role::Site | Role::Mount(_) | Role::Operator => None,
            },
            (Whose::Node(_), None) => Some(hello.uid),
        };
        Ok(true)
    }

    fn proved(&mut self, sink: &mut RequestSink, site: SiteId, grant: Grant) {
        self.unproved = false;
        self.proof = Some(Proof {
            site,
            grant: grant.clone(),
        });
        let (role, name) = (grant.role.name(), &*grant.name);
        match sink.proofs.has_room(&self.whose, sink.now) {
            true => info!(peer = self.peer, role, name, "a secret was proved"),
            false => debug!(peer = self.peer, role, name, "a secret was proved"),
        }
        sink.messages.push(ToLoop::Proved {
            conn: self.id,
            grant,
            protected: self.stream.is_protected(),
        });
    }

    fn turn_away(&mut self, refusal: Refusal) -> Result<(), String> {
        self.turn_away_with(&format!("greeting refused: {refusal}"), refusal)
    }

    fn turn_away_with(&mut self, reason: &str, refusal: Refusal) -> Result<(), String> {
        self.closing = Some(reason.into());
        self.greet(&Greeting::refusal(refusal))
    }

    /// Sends a greeting, which is the first that is sent, and short.
    pub(super) fn greet(&self, greeting: &Greeting) -> Result<(), String> {
        let bytes = greeting.to_bytes();
        match self.stream.send(&[bytes[..].into()], false, None) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            _ => Err("it does not take an answer to its greeting".to_string()),
        }
    }

    /// Why what the client has proved holds no more.
    pub(in super::super) fn void(&self, valid: &Valid, now_s: u64) -> Option<&'static str> {
        let Proof { site, grant } = self.proof.as_ref()?;
        if grant.is_void(now_s) {
            return Some(match grant.by {
                Some(_) => TICKET_ENDED,
                None => "its secret has expired",
            });
        }
        if valid.revokes(grant) {
            return Some("its secret was revoked");
        }
        let is_valid = valid.sites.iter().any(|it| it.id() == *site);
        (!is_valid).then_some("its secret is not valid any more")
    }
}
