//! What a session of another node says and hears before its hello, and how long that holds.

use super::super::{RequestSink, ToLoop};
use super::Session;
use crate::clock::wall_s;
use std::io::IoSlice;
use tidegate_net::{Greeting, Refusal, SiteSecret};

impl Session {
    /// Answers what a client of another node says first. An error says why the session must end.
    pub(super) fn greeting_came(
        &mut self,
        sink: &mut RequestSink,
        greeting: &Greeting,
    ) -> Result<(), String> {
        let policy = &sink.policy;
        let accepted = match &policy.secrets {
            Some(secrets) => {
                let sites = secrets.valid(sink.now);
                tidegate_net::accept(&sites, policy.encryption, wall_s(), greeting)
            }
            None => Err(Refusal::Insecure),
        };
        match accepted {
            Ok(accepted) => {
                self.greet(&accepted.answer)?;
                if let Some(channel) = accepted.channel {
                    self.stream.protect(channel);
                }
                self.unproved = false;
                self.proof = Some((accepted.site, accepted.grant.expires));
                sink.messages.push(ToLoop::Proved(self.id, accepted.grant));
            }
            Err(refusal) => {
                self.closing = Some(format!("greeting refused: {refusal}").into());
                self.greet(&Greeting::refusal(refusal))?;
            }
        }
        Ok(())
    }

    /// Sends a greeting, which is the first that is sent, and short.
    pub(super) fn greet(&self, greeting: &Greeting) -> Result<(), String> {
        let bytes = greeting.to_bytes();
        match self.stream.send(&[IoSlice::new(&bytes)], false, None) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            _ => Err("it does not take an answer to its greeting".to_string()),
        }
    }

    /// Why what the client has proved holds no more.
    pub(in super::super) fn void(&self, sites: &[SiteSecret], now_s: u64) -> Option<&'static str> {
        let (site, expires) = self.proof?;
        if expires.is_some_and(|expires| expires <= now_s) {
            return Some("its secret has expired");
        }
        let is_valid = sites.iter().any(|it| it.id() == site);
        (!is_valid).then_some("its secret is not valid any more")
    }
}
