//! Settings of a device, which it follows while it runs.

use super::option::ConfigError;
use crate::sync::{Mutex, lock};
use std::fmt::{Debug, Display};
use std::sync::{Arc, Weak};

/// A device that follows its settings while it runs.
pub(crate) trait Follow: Send + Sync {
    /// Whether it was given up.
    fn is_gone(&self) -> bool;

    /// Programs it by its settings, which have changed.
    fn follow(&self);

    /// Its registers, for a report.
    fn registers(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// Settings, and the device, once it is started.
pub(crate) struct LiveSettings<S>(Mutex<(S, Option<Weak<dyn Follow>>)>);

impl<S> LiveSettings<S> {
    pub(crate) fn new(settings: S) -> LiveSettings<S> {
        LiveSettings(Mutex::new((settings, None)))
    }

    /// The device is started: it follows all further changes.
    pub(crate) fn attach(&self, device: Weak<dyn Follow>) {
        lock(&self.0).1 = Some(device);
    }

    /// The device, if it runs.
    pub(crate) fn device(&self) -> Option<Arc<dyn Follow>> {
        lock(&self.0).1.as_ref().and_then(Weak::upgrade)
    }

    /// Looks at the settings.
    pub(crate) fn read<R>(&self, look: impl FnOnce(&S) -> R) -> R {
        look(&lock(&self.0).0)
    }

    /// Changes settings before the device is started.
    pub(crate) fn set(&self, edit: impl FnOnce(&mut S)) {
        edit(&mut lock(&self.0).0);
    }

    /// Changes settings; the device follows at once. `option` and `value` are for errors.
    ///
    /// # Errors
    /// [`ConfigError`] if the device was given up; nothing has changed then.
    pub(crate) fn change(
        &self,
        option: &'static str,
        value: &dyn Display,
        edit: impl FnOnce(&mut S),
    ) -> Result<(), ConfigError> {
        let device = self.device();
        if device.as_ref().is_some_and(|device| device.is_gone()) {
            let rule = "the device does not answer, and was given up".to_owned();
            return Err(ConfigError { option, value: value.to_string(), rule });
        }
        self.set(edit);
        if let Some(device) = device {
            device.follow();
        }
        Ok(())
    }
}

impl<S: Debug> Debug for LiveSettings<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.read(|settings| settings.fmt(f))
    }
}
