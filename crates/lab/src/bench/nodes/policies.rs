//! The forwarders' policy during `bench cluster`: the benchmark changes it between turns, and puts
//! it back at the end.

use super::fleet::application;
use serde_json::Value;
use std::sync::Arc;
use tidegate_cli::errln;
use tidegate_cli::fail::Fail;
use tidegate_cli::stat::{ANSWER_MAX, ask_all, states, why};
use tidegate_cli::target::Target;
use tidegate_client::wire::Keep;
use tidegate_client::{Client, app_id};

/// The forwarders, and the policy that each had.
pub struct Policies {
    client: Arc<Client>,
    addresses: Vec<String>,
    before: Vec<String>,
}

impl Policies {
    /// Connects, and records the effective policy.
    pub fn find(target: &Target) -> Result<Policies, Fail> {
        let (found, client) = target.connect(Some(ANSWER_MAX))?;
        let mut policies = Policies {
            client,
            addresses: found.forwarders,
            before: Vec::new(),
        };
        policies.before = policies.states()?.iter().map(table).collect();
        Ok(policies)
    }

    /// How many forwarders there are.
    pub fn forwarders(&self) -> usize {
        self.addresses.len()
    }

    /// The state of each forwarder; all must answer.
    pub fn states(&self) -> Result<Vec<Value>, Fail> {
        let states = states(&self.client, &self.addresses);
        for (state, address) in states.iter().zip(&self.addresses) {
            if let Some(error) = state["error"].as_str() {
                return Err(Fail::runtime(format!("forwarder {address}: {error}")));
            }
        }
        Ok(states)
    }

    /// Changes the policy at all forwarders, and checks that it is effective; `text` is a
    /// `[scheduler]` table.
    pub fn set(&self, name: &str, text: &str) -> Result<(), Fail> {
        self.tell(|_| text)?;
        for (state, address) in self.states()?.iter().zip(&self.addresses) {
            if state["policy"].as_str() != Some(name) {
                return Err(Fail::runtime(format!(
                    "forwarder {address} follows {} and not {name}: are there rules of shares? \
                     (tidegate share)",
                    state["policy"]
                )));
            }
        }
        Ok(())
    }

    fn tell<'a>(&self, text: impl Fn(usize) -> &'a str + Sync) -> Result<(), Fail> {
        let one = |index: usize| self.client.set_policy(index, text(index), Keep::Run).err();
        let answers = ask_all(self.addresses.len(), one).into_iter();
        let failed = answers.zip(&self.addresses).filter_map(|(errno, address)| {
            let why = why(errno?);
            Some(format!("forwarder {address} does not change policy: {why}"))
        });
        let failed: Vec<String> = failed.collect();
        match failed.is_empty() {
            true => Ok(()),
            false => Err(Fail::runtime(failed.join("; "))),
        }
    }
}

impl Drop for Policies {
    fn drop(&mut self) {
        if self.before.len() != self.addresses.len() {
            return;
        }
        if let Err(fail) = self.tell(|index| self.before[index].as_str()) {
            errln!(
                "tidegate: {}; the policy is not what it was: tidegate policy set",
                fail.message
            );
        }
    }
}

/// What a forwarder's state says of its policy, as a `[scheduler]` table.
fn table(state: &Value) -> String {
    let plain = |value: &Value| match value {
        Value::Bool(flag) => Some(toml::Value::Boolean(*flag)),
        Value::Number(number) => number.as_i64().map(toml::Value::Integer),
        Value::String(text) => Some(toml::Value::String(text.clone())),
        _ => None,
    };
    let options = state["options"].as_object().into_iter().flatten();
    let mut table: toml::Table = options
        .filter_map(|(key, value)| Some((key.clone(), plain(value)?)))
        .collect();
    let asked = state["asked_policy"].as_str().unwrap_or("fifo");
    table.insert("policy".to_string(), asked.into());
    table.to_string()
}

/// Bytes that each program has moved through each forwarder so far: by program, then forwarder.
pub fn moved(states: &[Value], programs: usize) -> Vec<Vec<u64>> {
    let of = |state: &Value, id: &str| {
        let applications = state["applications"].as_array().into_iter().flatten();
        let own = applications.filter(|one| one["app"].as_str() == Some(id));
        let bytes = |one: &Value| {
            let count = |key: &str| one[key].as_u64().unwrap_or(0);
            count("read_bytes") + count("write_bytes")
        };
        own.map(bytes).sum()
    };
    let one = |number| {
        let id = format!("{:016x}", app_id(&application(number)));
        states.iter().map(|state| of(state, &id)).collect()
    };
    (0..programs).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_policy_is_put_back_as_it_was() {
        let state = json!({
            "policy": "two-level", "asked_policy": "window",
            "options": {"depth": 4, "merge": false, "window_ms": 250, "order": "id"},
        });
        let text = table(&state);
        let options = tidegate_sched::Options::default();
        let found = tidegate_server::config::scheduler_options(&text, &options, None);
        assert!(found.is_ok(), "{text}");
        for part in ["policy = \"window\"", "depth = 4", "window_ms = 250"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn bytes_are_counted_by_program_and_forwarder() {
        let id = format!("{:016x}", app_id(&application(1)));
        let states = [
            json!({"applications": [{"app": id, "read_bytes": 5, "write_bytes": 2}]}),
            json!({"applications": [{"app": "0", "read_bytes": 9, "write_bytes": 9}]}),
        ];
        assert_eq!(moved(&states, 2), [[0, 0], [7, 0]]);
    }
}
