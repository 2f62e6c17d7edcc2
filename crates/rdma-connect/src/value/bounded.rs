//! Decodes values from untrusted bytes. The depth of a value is limited, and so is its number of parts, in proportion
//! to the number of bytes.
//!
//! In the `postcard` format, an element without contents takes no bytes (as in a `Vec<()>`), and each level of a
//! recursive type takes one byte. Without limits, a few bytes could keep a thread busy forever or overflow its stack.

use std::cell::Cell;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};

/// The maximum depth of a value: each element, field and `Some` is one level deeper than its parent.
const DEPTH: usize = 128;
/// The number of parts allowed per byte.
const PARTS_OF_BYTE: usize = 16;
/// The number of parts allowed in addition, because some parts take no bytes.
const PARTS: usize = 4096;

/// The depth and the number of parts that are still allowed.
#[derive(Debug)]
pub(super) struct Bounds {
    depth: Cell<usize>,
    parts: Cell<usize>,
    /// A description of the limit that the value exceeds, if any.
    beyond: Cell<Option<&'static str>>,
}

impl Bounds {
    /// Returns the limits for a value encoded in this many bytes.
    pub(super) fn of(bytes: usize) -> Self {
        let parts = bytes.saturating_mul(PARTS_OF_BYTE).saturating_add(PARTS);
        Self { depth: Cell::new(DEPTH), parts: Cell::new(parts), beyond: Cell::default() }
    }

    /// Returns a description of the limit that the value exceeds, if any.
    pub(super) const fn beyond(&self) -> Option<&'static str> {
        self.beyond.get()
    }

    /// Counts a part that is nested in the current one, and checks the limits.
    fn enter<E: Error>(&self) -> Result<(), E> {
        let take = |of: &Cell<usize>, beyond| {
            let left = of.get().checked_sub(1);
            let left = left.ok_or_else(|| {
                self.beyond.set(Some(beyond));
                E::custom(beyond)
            })?;
            of.set(left);
            Ok(())
        };
        take(&self.depth, "it is more than 128 values deep")?;
        take(&self.parts, "it has many more parts than there are bytes")
    }

    fn leave(&self) {
        self.depth.set(self.depth.get() + 1);
    }
}

/// A serde object to which the limits apply.
pub(super) struct Bounded<'b, T> {
    pub(super) inner: T,
    pub(super) bounds: &'b Bounds,
}

impl<'b, T> Bounded<'b, T> {
    const fn with<U>(bounds: &'b Bounds, inner: U) -> Bounded<'b, U> {
        Bounded { inner, bounds }
    }
}

impl<'de, T: DeserializeSeed<'de>> DeserializeSeed<'de> for Bounded<'_, T> {
    type Value = T::Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<T::Value, D::Error> {
        let Self { inner, bounds } = self;
        bounds.enter()?;
        let value = inner.deserialize(Self::with(bounds, from))?;
        bounds.leave();
        Ok(value)
    }
}

macro_rules! deserialize {
    ($($name:ident($($argument:ident: $type:ty),*);)+) => {$(
        fn $name<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$name($($argument,)* Self::with(self.bounds, visitor))
        }
    )+};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Bounded<'_, D> {
    type Error = D::Error;

    deserialize! {
        deserialize_any();
        deserialize_bool();
        deserialize_i8();
        deserialize_i16();
        deserialize_i32();
        deserialize_i64();
        deserialize_i128();
        deserialize_u8();
        deserialize_u16();
        deserialize_u32();
        deserialize_u64();
        deserialize_u128();
        deserialize_f32();
        deserialize_f64();
        deserialize_char();
        deserialize_str();
        deserialize_string();
        deserialize_bytes();
        deserialize_byte_buf();
        deserialize_option();
        deserialize_unit();
        deserialize_unit_struct(name: &'static str);
        deserialize_newtype_struct(name: &'static str);
        deserialize_seq();
        deserialize_tuple(length: usize);
        deserialize_tuple_struct(name: &'static str, length: usize);
        deserialize_map();
        deserialize_struct(name: &'static str, fields: &'static [&'static str]);
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
        deserialize_identifier();
        deserialize_ignored_any();
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! visit {
    ($($name:ident($type:ty);)+) => {$(
        fn $name<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$name(value)
        }
    )+};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Bounded<'_, V> {
    type Value = V::Value;

    visit! {
        visit_bool(bool);
        visit_i8(i8);
        visit_i16(i16);
        visit_i32(i32);
        visit_i64(i64);
        visit_i128(i128);
        visit_u8(u8);
        visit_u16(u16);
        visit_u32(u32);
        visit_u64(u64);
        visit_u128(u128);
        visit_f32(f32);
        visit_f64(f64);
        visit_char(char);
        visit_str(&str);
        visit_borrowed_str(&'de str);
        visit_string(String);
        visit_bytes(&[u8]);
        visit_borrowed_bytes(&'de [u8]);
        visit_byte_buf(Vec<u8>);
    }

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        let Self { inner, bounds } = self;
        bounds.enter()?;
        let value = inner.visit_some(Self::with(bounds, from))?;
        bounds.leave();
        Ok(value)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        let Self { inner, bounds } = self;
        bounds.enter()?;
        let value = inner.visit_newtype_struct(Self::with(bounds, from))?;
        bounds.leave();
        Ok(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, of: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(Self::with(self.bounds, of))
    }

    fn visit_map<A: MapAccess<'de>>(self, of: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Self::with(self.bounds, of))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, of: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(Self::with(self.bounds, of))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Bounded<'_, A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, A::Error> {
        self.inner.next_element_seed(Self::with(self.bounds, seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Bounded<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        self.inner.next_key_seed(Self::with(self.bounds, seed))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.inner.next_value_seed(Self::with(self.bounds, seed))
    }

    /// Returns no hint, because `postcard` would return the announced length, even if fewer bytes follow.
    fn size_hint(&self) -> Option<usize> {
        None
    }
}

impl<'b, 'de, A: EnumAccess<'de>> EnumAccess<'de> for Bounded<'b, A> {
    type Error = A::Error;
    type Variant = Bounded<'b, A::Variant>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self::Variant), A::Error> {
        let (name, variant) = self.inner.variant_seed(seed)?;
        Ok((name, Self::with(self.bounds, variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Bounded<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, A::Error> {
        self.inner.newtype_variant_seed(Self::with(self.bounds, seed))
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.inner.tuple_variant(length, Self::with(self.bounds, visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.inner.struct_variant(fields, Self::with(self.bounds, visitor))
    }
}
