//! Rows of a result: names and values in an order that people see.

use std::borrow::Cow;

use serde::Serialize;
use serde::ser::SerializeMap;
use serde_json::Value;

/// One line of a table.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row(pub Vec<(Cow<'static, str>, Value)>);

impl Row {
    /// Adds a field.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Value>) -> Self {
        self.0.push((name.into(), value.into()));
        self
    }

    /// Another value for a field that is there.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        if let Some((_, old)) = self.0.iter_mut().find(|(n, _)| *n == name) {
            *old = value.into();
        }
    }

    /// A field.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    /// A field that is a number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.get(name)?.as_f64()
    }

    /// A field as text.
    pub fn text(&self, name: &str) -> String {
        match self.get(name) {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => String::new(),
        }
    }
}

impl Serialize for Row {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}
