//! Create, update, patch.

use super::{ATTEMPTS_MAX, DryRun, Engine, FieldValidation, WriteOptions, Written, key_of};
use crate::admission::{AdmissionRequest, AdmissionVerb};
use crate::error::{bad_request, changed, conflict, from_store, invalid, not_found, refuse};
use crate::names;
use crate::object::{
    encode, has_finalizers, is_being_deleted, meta_str, parse, same_but_version, set_meta, time,
};
use crate::patch::{self, PatchType};
use crate::prepare;
use crate::registry::{DeletionRule, Kind, StatusRule};
use crate::schema;
use bytes::Bytes;
use regatta_kit::ApiError;
use regatta_store::{Entry, Expect, Key, Write};
use regatta_types::resource;
use serde_json::Value;
use std::sync::Arc;

/// Which part of an object a write changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// All but the status.
    Main,
    /// The status only.
    Status,
    /// Whatever the server itself decides: bindings, finalizers of its own.
    Server,
}

impl Engine {
    pub(crate) async fn create_object(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        object: Value,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        let (mut object, mut warnings) = self.prepare_new(kind, namespace, object, options)?;
        let generated = object["metadata"]["name"].as_str().is_none_or(str::is_empty);
        for _ in 0..ATTEMPTS_MAX {
            let home = self.check_namespace(kind, namespace)?;
            if generated {
                let prefix: String =
                    meta_str(&object, "generateName").chars().take(names::NAME_CHARS_MAX - 5).collect();
                set_meta(&mut object, "name", Some(Value::from(format!("{prefix}{}", self.name_suffix()))))?;
            }
            let name = meta_str(&object, "name").to_owned();
            names::check(kind, &name)?;
            let mut admitted = object.clone();
            warnings.extend(self.admit(AdmissionVerb::Create, kind, &mut admitted, None, options).await?);
            kind.check_shape(&admitted).map_err(|problem| invalid(&kind.resource, &name, problem))?;
            let key = key_of(kind, namespace, &name);
            if options.dry_run == DryRun::Yes {
                if self.store.latest(&key).is_some() {
                    return Err(crate::error::already_exists(&kind.resource, &name));
                }
                return Ok(Written { json: to_bytes(&admitted)?, warnings });
            }
            let write = Write::put(key.clone(), Expect::Absent, encode(&key, admitted)?)
                .with_durability(kind.durability);
            let mut batch = vec![write];
            batch.extend(home);
            match self.commit_batch(batch).await {
                Ok(entry) => {
                    self.after_creation(kind, &entry).await;
                    if kind.resource == resource::EVENTS {
                        self.note_event(&entry.key);
                        self.expire_events().await;
                    }
                    return Ok(Written { json: entry.json.clone(), warnings });
                }
                // The namespace has changed meanwhile: perhaps it is going.
                Err(regatta_store::Error::Conflict { key: found, .. }) if found != key => {}
                Err(regatta_store::Error::Conflict { .. }) if generated => {}
                Err(error) => return Err(from_store(&kind.resource, &name, &error)),
            }
        }
        Err(refuse(409, "AlreadyExists", "no free name was found for generateName; try again"))
    }

    /// Fills in what the server owns and checks what does not depend on other objects.
    fn prepare_new(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        mut object: Value,
        options: &WriteOptions,
    ) -> Result<(Value, Vec<String>), ApiError> {
        check_type(kind, &mut object)?;
        check_namespace_of(&mut object, namespace)?;
        if meta_str(&object, "name").is_empty() && meta_str(&object, "generateName").is_empty() {
            return Err(invalid(
                &kind.resource,
                "",
                "metadata.name: Required value: name or generateName is required",
            ));
        }
        if !meta_str(&object, "resourceVersion").is_empty() {
            return Err(bad_request("resourceVersion should not be set on objects to be created"));
        }
        if kind.status == StatusRule::Subresource
            && let Some(fields) = object.as_object_mut()
        {
            fields.remove("status");
        }
        let warnings = check_fields(kind, &mut object, options.validation)?;
        let now = self.clock.now();
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink"] {
            set_meta(&mut object, field, None)?;
        }
        set_meta(&mut object, "uid", Some(Value::from(self.new_uid())))?;
        set_meta(&mut object, "creationTimestamp", Some(time(now)))?;
        set_meta(&mut object, "generation", has_generation(kind).then(|| Value::from(1)))?;
        prepare::on_create(kind, &mut object)?;
        Ok((object, warnings))
    }

    /// A namespaced object needs a namespace that stays. The answer goes into the batch that makes the object, so that
    /// no object is made in a namespace that another writer deletes at the same moment.
    fn check_namespace(&self, kind: &Kind, namespace: Option<&str>) -> Result<Option<Write>, ApiError> {
        let Some(name) = namespace.filter(|_| kind.is_namespaced()) else { return Ok(None) };
        let key = Key::new("namespaces", "", name);
        let Some(entry) = self.store.latest(&key) else {
            return Err(not_found(&resource::NAMESPACES, name));
        };
        if entry.header.deletion == regatta_store::Deletion::Requested {
            let what =
                format!("unable to create new content in namespace {name} because it is being terminated");
            return Err(refuse(403, "Forbidden", what));
        }
        Ok(Some(Write::check(key, Expect::Version(entry.version))))
    }

    async fn admit(
        &self,
        verb: AdmissionVerb,
        kind: &Kind,
        object: &mut Value,
        old: Option<&Value>,
        options: &WriteOptions,
    ) -> Result<Vec<String>, ApiError> {
        match &self.admission {
            Some(admission) => {
                let request =
                    AdmissionRequest { verb, resource: kind.resource, user: &options.user, object, old };
                admission.admit(request).await
            }
            None => Ok(Vec::new()),
        }
    }

    pub(crate) async fn commit(&self, kind: &Kind, name: &str, write: Write) -> Result<Arc<Entry>, ApiError> {
        let committed = self.commit_batch(vec![write]).await;
        committed.map_err(|error| from_store(&kind.resource, name, &error))
    }

    /// Commits a batch; the answer is its first object.
    async fn commit_batch(&self, batch: Vec<Write>) -> Result<Arc<Entry>, regatta_store::Error> {
        let entries = self.store.commit(batch)?.await?;
        Ok(entries.into_iter().next().expect("invariant: the first write of a batch is not a mere check"))
    }

    /// Waits until a state that was read for a write is durable: a client must not hear of what a crash could take
    /// back.
    pub(crate) async fn settled(&self, kind: &Kind, entry: &Entry) -> Result<(), ApiError> {
        if self.store.get(&entry.key).is_some_and(|published| published.version >= entry.version) {
            return Ok(());
        }
        let barrier = async { self.store.commit(Vec::new())?.await };
        barrier.await.map(drop).map_err(|error| from_store(&kind.resource, &entry.key.path.name, &error))
    }

    /// Replaces an object or its status by `object`.
    pub(crate) async fn replace(
        &self,
        kind: &Kind,
        key: &Key,
        part: Part,
        mut object: Value,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        check_type(kind, &mut object)?;
        let name = meta_str(&object, "name");
        if !name.is_empty() && *name != *key.path.name {
            let url = &key.path.name;
            return Err(bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({url})"
            )));
        }
        let namespace = Some(&*key.path.namespace).filter(|namespace| !namespace.is_empty());
        check_namespace_of(&mut object, namespace)?;
        self.modify(kind, key, part, options, &|_| Ok(object.clone())).await
    }

    /// Patches an object or its status.
    pub(crate) async fn patch_object(
        &self,
        kind: &Kind,
        key: &Key,
        part: Part,
        (patch_type, body): (PatchType, &Value),
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        self.modify(kind, key, part, options, &|old| patch::apply(patch_type, old, body)).await
    }

    /// Changes one object by a function of its newest state.
    pub(crate) async fn modify(
        &self,
        kind: &Kind,
        key: &Key,
        part: Part,
        options: &WriteOptions,
        change: &(dyn Fn(&Value) -> Result<Value, ApiError> + Sync),
    ) -> Result<Written, ApiError> {
        let name = &*key.path.name;
        for _ in 0..ATTEMPTS_MAX {
            let entry = self.store.latest(key).ok_or_else(|| not_found(&kind.resource, name))?;
            let old = parse(&entry)?;
            let asked = change(&old)?;
            let meant = meta_str(&asked, "resourceVersion").to_owned();
            if !meant.is_empty() && meant != entry.version.to_string() {
                return Err(changed(&kind.resource, name));
            }
            let (new, warnings) = self.merge(kind, part, &old, asked, options).await?;
            if same_but_version(&old, &new) {
                self.settled(kind, &entry).await?;
                return Ok(Written { json: entry.json.clone(), warnings });
            }
            if options.dry_run == DryRun::Yes {
                return Ok(Written { json: to_bytes(&new)?, warnings });
            }
            let ends = is_being_deleted(&new) && !has_finalizers(&new) && !waits_for_its_runner(kind, &new);
            let body = encode(key, new)?;
            let write = if ends {
                Write::delete(key.clone(), entry.version, body)
            } else {
                Write::put(key.clone(), Expect::Version(entry.version), body)
            };
            match self.commit(kind, name, write.with_durability(kind.durability)).await {
                Ok(entry) => {
                    if ends {
                        self.after_removal(kind, &entry).await;
                    } else if kind.deletion == DeletionRule::Namespace {
                        // Its last finalizer may just have gone.
                        self.remove_empty_namespace(name).await;
                    }
                    return Ok(Written { json: entry.json.clone(), warnings });
                }
                // Computed again from what the faster writer left, unless the client meant one version: then the
                // check above says so.
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        Err(conflict(&kind.resource, name, "too many writers are faster; try again"))
    }

    /// The new state: what the client may change from `asked`, everything else from `old`.
    async fn merge(
        &self,
        kind: &Kind,
        part: Part,
        old: &Value,
        mut asked: Value,
        options: &WriteOptions,
    ) -> Result<(Value, Vec<String>), ApiError> {
        let name = meta_str(old, "name");
        let uid = meta_str(&asked, "uid");
        if !uid.is_empty() && uid != meta_str(old, "uid") {
            let problem = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                meta_str(old, "uid")
            );
            return Err(conflict(&kind.resource, name, &problem));
        }
        if part == Part::Server {
            return Ok((asked, Vec::new()));
        }
        if part == Part::Status {
            let mut new = old.clone();
            new["status"] = asked["status"].take();
            kind.check_shape(&new).map_err(|problem| invalid(&kind.resource, name, problem))?;
            return Ok((new, Vec::new()));
        }
        check_type(kind, &mut asked)?;
        let owned = [
            "name",
            "namespace",
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
            "resourceVersion",
            "generateName",
        ];
        for field in owned {
            set_meta(&mut asked, field, Some(old["metadata"][field].clone()))?;
        }
        set_meta(&mut asked, "managedFields", None)?;
        if kind.status != StatusRule::None
            && let Some(fields) = asked.as_object_mut()
        {
            match old.get("status") {
                Some(status) => fields.insert("status".to_owned(), status.clone()),
                None => fields.remove("status"),
            };
        }
        if is_being_deleted(old) && adds_finalizer(old, &asked) {
            let problem = "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted";
            return Err(invalid(&kind.resource, name, problem));
        }
        let mut warnings = check_fields(kind, &mut asked, options.validation)?;
        prepare::on_update(kind, old, &mut asked)?;
        warnings.extend(self.admit(AdmissionVerb::Update, kind, &mut asked, Some(old), options).await?);
        kind.check_shape(&asked).map_err(|problem| invalid(&kind.resource, name, problem))?;
        if has_generation(kind) && !same_intent(old, &asked) {
            let next = old["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
            set_meta(&mut asked, "generation", Some(Value::from(next)))?;
        }
        Ok((asked, warnings))
    }

    /// Binds a pod to a node.
    pub(crate) async fn bind_pod(&self, namespace: &str, name: &str, node: &str) -> Result<(), ApiError> {
        let kind = self.registry.of(&resource::PODS).ok_or_else(crate::error::no_such_resource)?;
        let key = key_of(kind, Some(namespace), name);
        let now = self.clock.now();
        let change = |old: &Value| {
            if let Some(bound) = old["spec"]["nodeName"].as_str().filter(|bound| !bound.is_empty()) {
                return Err(conflict(
                    &kind.resource,
                    name,
                    &format!("pod {name} is already assigned to node {bound:?}"),
                ));
            }
            if is_being_deleted(old) {
                return Err(conflict(
                    &kind.resource,
                    name,
                    &format!("pod {name} is being deleted, cannot be assigned to a host"),
                ));
            }
            let mut new = old.clone();
            new["spec"]["nodeName"] = Value::from(node);
            prepare::set_scheduled(&mut new, now);
            Ok(new)
        };
        self.modify(kind, &key, Part::Server, &WriteOptions::default(), &change).await.map(drop)
    }
}

/// Whether an object that is being deleted waits for whoever runs it to confirm its end.
pub(crate) fn waits_for_its_runner(kind: &Kind, object: &Value) -> bool {
    kind.deletion == DeletionRule::Graceful
        && object["metadata"]["deletionGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds > 0)
        || kind.deletion == DeletionRule::Namespace
}

fn has_generation(kind: &Kind) -> bool {
    kind.status != StatusRule::None && kind.deletion == DeletionRule::Immediate
}

/// Whether two states ask for the same: everything but metadata and status.
fn same_intent(a: &Value, b: &Value) -> bool {
    let rest = |object: &Value| {
        let mut object = object.as_object().cloned().unwrap_or_default();
        object.remove("metadata");
        object.remove("status");
        object
    };
    rest(a) == rest(b)
}

fn adds_finalizer(old: &Value, new: &Value) -> bool {
    let list = |object: &Value| object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let known = list(old);
    list(new).iter().any(|finalizer| !known.contains(finalizer))
}

/// Fills in kind and version from the URL, as clients that leave them out expect, and refuses other ones.
fn check_type(kind: &Kind, object: &mut Value) -> Result<(), ApiError> {
    let fields = object.as_object_mut().ok_or_else(|| bad_request("the body is not an object"))?;
    let expected = [("apiVersion", kind.resource.api_version()), ("kind", kind.resource.kind.to_owned())];
    for (field, expected) in expected {
        match fields.get(field).and_then(Value::as_str) {
            None | Some("") => {
                fields.insert(field.to_owned(), Value::from(expected));
            }
            Some(found) if found == expected => {}
            Some(found) => {
                return Err(bad_request(format!(
                    "{field} in the data ({found}) does not match the expected {field} ({expected})"
                )));
            }
        }
    }
    Ok(())
}

fn check_namespace_of(object: &mut Value, namespace: Option<&str>) -> Result<(), ApiError> {
    let given = meta_str(object, "namespace").to_owned();
    match namespace {
        Some(namespace) if given.is_empty() => set_meta(object, "namespace", Some(Value::from(namespace))),
        Some(namespace) if given == namespace => Ok(()),
        Some(namespace) => Err(bad_request(format!(
            "the namespace of the provided object does not match the namespace sent on the request: {given:?} is not {namespace:?}"
        ))),
        None => set_meta(object, "namespace", None),
    }
}

/// Checks an object against the schema of its kind. Fields that do not exist are dropped, so that nothing is stored that
/// means nothing.
fn check_fields(
    kind: &Kind,
    object: &mut Value,
    validation: FieldValidation,
) -> Result<Vec<String>, ApiError> {
    let name = meta_str(object, "name").to_owned();
    let findings = schema::check(&kind.schema, object);
    if !findings.wrong.is_empty() {
        return Err(invalid(&kind.resource, &name, findings.wrong.join("; ")));
    }
    if findings.unknown.is_empty() {
        return Ok(Vec::new());
    }
    if validation == FieldValidation::Strict {
        return Err(bad_request(format!("strict decoding error: {}", findings.unknown.join(", "))));
    }
    schema::prune(&kind.schema, object);
    Ok(if validation == FieldValidation::Warn { findings.unknown } else { Vec::new() })
}

fn to_bytes(object: &Value) -> Result<Bytes, ApiError> {
    serde_json::to_vec(object)
        .map(Bytes::from)
        .map_err(|e| ApiError::internal(format!("cannot encode the object: {e}")))
}
