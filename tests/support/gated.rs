//! Tests that need something which this machine may lack: reported by name as ignored, with the reason.

use libtest_mimic::{Failed, Trial};

/// A test that runs where `need` is met, and is otherwise ignored with `need`'s reason.
pub fn trial(
    name: &str,
    need: &Result<(), String>,
    test: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> Trial {
    let missing = need.clone().err();
    let kind = missing
        .clone()
        .map(|reason| format!("ignored: {reason}"))
        .unwrap_or_default();
    let ignored = missing.is_some();
    Trial::test(name, move || {
        if let Some(reason) = missing {
            return Err(Failed::from(reason));
        }
        test().map_err(|error| Failed::from(format!("{error:#}")))
    })
    .with_kind(kind)
    .with_ignored_flag(ignored)
}
