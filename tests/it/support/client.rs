//! A client that checks every answer of the whole suite for what all answers have in common.

use std::net::SocketAddr;
use std::time::Duration;

use petstore_domain::api_key::ApiKey;
use reqwest::header::HeaderMap;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use super::openapi;

/// Sends requests to one address, with one key or none.
#[derive(Clone)]
pub(crate) struct Client {
    address: SocketAddr,
    key: Option<String>,
    http: reqwest::Client,
}

impl Client {
    pub(crate) fn new(address: SocketAddr, key: Option<&ApiKey>) -> Self {
        let key = key.map(|key| format!("Bearer {}", key.reveal()));
        // Shorter than any timeout of the service in these tests, so that the service never closes first.
        let http = reqwest::Client::builder().pool_idle_timeout(Duration::from_millis(200));
        Self { address, key, http: http.build().unwrap() }
    }

    /// The same client without its key.
    pub(crate) fn without_key(&self) -> Self {
        Self { key: None, ..self.clone() }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, |request| request).await
    }

    pub(crate) async fn get_with_header(&self, path: &str, name: &str, value: &str) -> Answer {
        self.send(Method::GET, path, |request| request.header(name, value)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_text(path, &body.to_string()).await
    }

    /// Sends text as JSON, whether it is JSON or not.
    pub(crate) async fn post_text(&self, path: &str, body: &str) -> Answer {
        self.post_bytes(path, body.as_bytes()).await
    }

    pub(crate) async fn post_bytes(&self, path: &str, body: &[u8]) -> Answer {
        self.send(Method::POST, path, |request| {
            request.header("content-type", "application/json").body(body.to_vec())
        })
        .await
    }

    /// Changes a pet with a JSON merge patch.
    pub(crate) async fn patch_pet(&self, pet: i64, body: &Value) -> Answer {
        self.send(Method::PATCH, &format!("/v1/pets/{pet}"), |request| {
            request.header("content-type", "application/merge-patch+json").body(body.to_string())
        })
        .await
    }

    /// Sends JSON with an `Idempotency-Key`.
    pub(crate) async fn post_with_key(&self, path: &str, key: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, |request| {
            let request = request.header("content-type", "application/json").header("idempotency-key", key);
            request.body(body.to_string())
        })
        .await
    }

    /// Adds a pet and returns its id.
    pub(crate) async fn add(&self, name: &str, status: Option<&str>) -> i64 {
        let mut body = json!({"name": name, "categoryId": 1});
        if let Some(status) = status {
            body["status"] = status.into();
        }
        let answer = self.post("/v1/pets", &body).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        answer.json()["id"].as_i64().unwrap()
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        with: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Answer {
        self.try_send(method, path, with).await.unwrap()
    }

    pub(crate) async fn try_send(
        &self,
        method: Method,
        path: &str,
        with: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Result<Answer, reqwest::Error> {
        let mut request = self.http.request(method.clone(), format!("http://{}{path}", self.address));
        if let Some(key) = &self.key {
            request = request.header("authorization", key);
        }
        let response = with(request).send().await?;
        let answer = Answer {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: response.text().await?,
        };
        answer.check(&method);
        openapi::check(&method, path, &answer);
        Ok(answer)
    }
}

/// An answer, with its whole body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("not JSON: {:?}", self.body))
    }

    /// The value of a header, or "".
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The values of a header that may occur many times.
    pub(crate) fn headers(&self, name: &str) -> Vec<&str> {
        self.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
    }

    /// Status and code of an error.
    pub(crate) fn error(&self) -> (u16, String) {
        (self.status, self.json()["code"].as_str().unwrap_or_default().to_owned())
    }

    /// The status and, of an error, its code: `503 unavailable`.
    pub(crate) fn summary(&self) -> String {
        match self.status {
            ..400 => self.status.to_string(),
            status => format!("{status} {}", self.error().1),
        }
    }

    /// Whether the answer was replayed for an `Idempotency-Key`.
    pub(crate) fn is_replayed(&self) -> bool {
        assert!(matches!(self.header("idempotent-replayed"), "" | "true"), "{self:?}");
        self.header("idempotent-replayed") == "true"
    }

    /// The ids of a list.
    pub(crate) fn ids(&self) -> Vec<i64> {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json().as_array().unwrap().iter().map(|pet| pet["id"].as_i64().unwrap()).collect()
    }

    /// The path of the next page, if there is one.
    pub(crate) fn next(&self) -> Option<&str> {
        let next = self.headers("link").into_iter().find(|link| link.ends_with("; rel=\"next\""))?;
        Some(&next[1..next.find('>').unwrap()])
    }

    /// Checks what every answer of the public listener has in common.
    pub(crate) fn check(&self, method: &Method) {
        let id = self.header("x-request-id");
        assert!((1..=64).contains(&id.len()), "no request id: {self:?}");
        assert!(!self.header("cache-control").is_empty(), "no Cache-Control: {self:?}");
        if self.status >= 400 && method != Method::HEAD {
            assert_eq!(self.header("content-type"), "application/json", "{self:?}");
            let body = self.json();
            let mut members: Vec<&String> = body.as_object().unwrap().keys().collect();
            members.retain(|member| *member != "field");
            assert_eq!(members, ["code", "message", "status"], "{self:?}");
            assert!(body.get("field").is_none_or(|field| field.as_str().is_some()), "{self:?}");
            assert_eq!(body["status"], self.status, "{self:?}");
            let message = body["message"].as_str().unwrap();
            assert!(message.ends_with(['.', '?']), "not a sentence: {self:?}");
        }
        assert_eq!(self.status == 401, self.headers.contains_key("www-authenticate") && self.status != 403);
        let retry_later = self.status == 503 || self.status == 429;
        assert_eq!(retry_later, self.headers.contains_key("retry-after"), "{self:?}");
        let limit = self.headers.contains_key("ratelimit-policy");
        assert_eq!(limit, self.headers.contains_key("ratelimit"), "{self:?}");
        assert!(limit || self.status != 429, "{self:?}");
        let lists_methods = self.status == 405 || method == Method::OPTIONS && self.status == 204;
        assert_eq!(lists_methods, self.headers.contains_key("allow"), "{self:?}");
    }
}
