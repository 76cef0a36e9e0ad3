//! Setters for the fields of a configuration.

/// Defines a struct as it is written, and for each of its fields a setter of the field's name. Also
/// for the crates above this one.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($(#[$attr:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: $type:ty,)* }) => {
        $(#[$attr])*
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl $name {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
                #[must_use]
                pub fn $field(self, $field: $type) -> $name {
                    $name { $field, ..self }
                }
            )*
        }
    };
}
