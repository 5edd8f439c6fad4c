//! Operations on names and attributes, each taking effect once: intent, effect, result.
