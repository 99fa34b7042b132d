//! Tests that need something which this machine may lack: reported by name as ignored, with the reason.

use libtest_mimic::{Completion, Failed, Trial};

/// A test that runs where `need` is met, and is otherwise ignored with `need`'s reason.
pub fn trial(
    name: &str,
    need: &Result<(), String>,
    test: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> Trial {
    let need = need.clone();
    Trial::ignorable_test(name, move || match need {
        Ok(()) => test()
            .map(|()| Completion::Completed)
            .map_err(|error| Failed::from(format!("{error:#}"))),
        Err(reason) => Ok(Completion::ignored_with(reason)),
    })
}
