//! The keys of a settings structure, asked of its own deserialisation: so no second list of them
//! has to be kept.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, Deserialize, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;

/// Every key of `T`, `section.key` for those of a section, in the order in which they are declared.
/// A key is a field that may be left out; a list (`[[rule]]`) has none of its own.
pub fn keys_of<T: Deserialize<'static>>() -> Vec<String> {
    let mut keys = Vec::new();
    let asked = Structure {
        prefix: String::new(),
        keys: &mut keys,
    };
    T::deserialize(asked).expect("a structure in which everything may be left out");
    keys
}

/// Why a structure cannot be asked.
#[derive(Debug)]
struct NoStructure(String);

impl fmt::Display for NoStructure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoStructure {}

impl de::Error for NoStructure {
    fn custom<M: fmt::Display>(message: M) -> Self {
        NoStructure(message.to_string())
    }
}

/// A structure in which every optional field is missing and every list empty; it writes down the
/// fields.
struct Structure<'a> {
    prefix: String,
    keys: &'a mut Vec<String>,
}

impl de::Deserializer<'static> for Structure<'_> {
    type Error = NoStructure;

    fn deserialize_any<V: Visitor<'static>>(self, _: V) -> Result<V::Value, NoStructure> {
        Err(NoStructure(format!("{} may not be left out", self.prefix)))
    }
    fn deserialize_option<V: Visitor<'static>>(self, visitor: V) -> Result<V::Value, NoStructure> {
        self.keys.push(self.prefix);
        visitor.visit_none()
    }
    fn deserialize_seq<V: Visitor<'static>>(self, visitor: V) -> Result<V::Value, NoStructure> {
        visitor.visit_seq(Empty)
    }
    fn deserialize_struct<V: Visitor<'static>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, NoStructure> {
        visitor.visit_map(Fields {
            left: fields.iter(),
            field: "",
            above: self,
        })
    }

    forward_to_deserialize_any! {
        <V: Visitor<'static>>
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct tuple tuple_struct map enum identifier ignored_any
    }
}

struct Empty;

impl SeqAccess<'static> for Empty {
    type Error = NoStructure;

    fn next_element_seed<S: DeserializeSeed<'static>>(
        &mut self,
        _: S,
    ) -> Result<Option<S::Value>, NoStructure> {
        Ok(None)
    }
}

struct Fields<'a> {
    left: std::slice::Iter<'static, &'static str>,
    field: &'static str,
    above: Structure<'a>,
}

impl MapAccess<'static> for Fields<'_> {
    type Error = NoStructure;

    fn next_key_seed<S: DeserializeSeed<'static>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, NoStructure> {
        let Some(field) = self.left.next() else {
            return Ok(None);
        };
        self.field = field;
        let name: StrDeserializer<'_, NoStructure> = field.into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'static>>(
        &mut self,
        seed: S,
    ) -> Result<S::Value, NoStructure> {
        let prefix = match self.above.prefix.as_str() {
            "" => self.field.to_string(),
            section => format!("{section}.{}", self.field),
        };
        seed.deserialize(Structure {
            prefix,
            keys: self.above.keys,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)] // only its fields' names are asked for
    struct Whole {
        first: Option<u32>,
        #[serde(default)]
        part: Part,
        #[serde(default, rename = "item")]
        items: Vec<u32>,
        last: Option<String>,
    }

    #[derive(Default, serde::Deserialize)]
    #[allow(dead_code)]
    struct Part {
        inner: Option<bool>,
    }

    #[test]
    fn keys_are_those_that_may_be_left_out() {
        assert_eq!(keys_of::<Whole>(), ["first", "part.inner", "last"]);
    }
}
