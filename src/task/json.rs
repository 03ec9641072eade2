//! JSON whose objects keep the order of their keys, in which chat templates print them.

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

/// A JSON value whose objects keep the order of their keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Json {
    /// An object.
    Object(Object),
    /// A list.
    List(Vec<Json>),
    /// Any other value.
    Scalar(Value),
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

/// The keys of a JSON object, each once, with their values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Object(pub Vec<(String, Json)>);

impl Object {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Json> {
        self.0.iter().find(|(other, _)| other == key).map(|(_, value)| value)
    }

    /// Sets the value of a key, which keeps its place if it is there, as in a Python dict.
    pub fn insert(&mut self, key: String, value: Json) {
        match self.0.iter().position(|(other, _)| *other == key) {
            Some(index) => self.0[index].1 = value,
            None => self.0.push((key, value)),
        }
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;

        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut object = Object::default();
                // A file from elsewhere may have millions of keys.
                let mut places = HashMap::<String, usize>::new();
                while let Some((key, value)) = map.next_entry::<String, Json>()? {
                    match places.entry(key) {
                        Entry::Occupied(place) => object.0[*place.get()].1 = value,
                        Entry::Vacant(place) => {
                            object.0.push((place.key().clone(), value));
                            place.insert(object.0.len() - 1);
                        }
                    }
                }
                Ok(object)
            }
        }

        deserializer.deserialize_map(ObjectVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_order_and_the_last_value_of_each_counts() {
        let text = r#"{"b":[1,{"d":null,"c":-2.5}],"a":{},"b":["x",true]}"#;
        let json: Json = serde_json::from_str(text).unwrap();
        assert_eq!(json.to_string(), r#"{"b":["x",true],"a":{}}"#);
        // Without a search of all earlier keys, which would take minutes.
        let keys: Vec<String> = (0..300_000).map(|key| format!("\"k{key}\":{key}")).collect();
        let many = format!("{{{}}}", keys.join(","));
        assert_eq!(serde_json::from_str::<Json>(&many).unwrap().to_string(), many);
        let text = r#"[{"d":null,"c":[-2.5,18446744073709551615,"\u0000"]},{}]"#;
        assert_eq!(serde_json::from_str::<Json>(text).unwrap().to_string(), text);
    }
}
