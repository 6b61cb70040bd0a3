//! The three operations on axum and sqlx, as a careful developer would write them in an afternoon.
//!
//! It checks less than the service does (one key from the environment, bodies by serde), which is in its favour. One
//! process that uses all cores, with as many database connections as the other peers have in total. The pool does not test a
//! connection before each use, as it does by default: that would be a second round trip per request.

use std::error::Error;

use axum::extract::{Path, Query, Request, State};
use axum::http::header::{AUTHORIZATION, LOCATION};
use axum::http::{HeaderName, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let pool = PgPoolOptions::new()
        .min_connections(16)
        .max_connections(16)
        .test_before_acquire(false)
        .connect(&std::env::var("DATABASE_URL")?)
        .await?;
    let authorization = format!("Bearer {}", std::env::var("KEY")?);
    let app = Router::new()
        .route("/v1/pets", get(list_pets).post(create_pet))
        .route("/v1/pets/{id}", get(get_pet))
        .layer(from_fn_with_state(authorization, authenticate))
        .with_state(pool);
    let port: u16 = std::env::var("PORT")?.parse()?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    Ok(axum::serve(listener, app).await?)
}

async fn authenticate(
    State(expected): State<String>,
    request: Request,
    next: Next,
) -> Result<Response, StatusCode> {
    match request.headers().get(AUTHORIZATION) {
        Some(sent) if sent.as_bytes() == expected.as_bytes() => Ok(next.run(request).await),
        _ => Err(StatusCode::UNAUTHORIZED),
    }
}

#[derive(Clone, Copy, Deserialize, Serialize, sqlx::Type)]
#[serde(rename_all = "lowercase")]
#[sqlx(type_name = "pet_status", rename_all = "lowercase")]
enum Status {
    Available,
    Pending,
    Sold,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewPet {
    name: String,
    category_id: i64,
    status: Option<Status>,
}

#[derive(Serialize, sqlx::FromRow)]
#[serde(rename_all = "camelCase")]
struct Pet {
    id: i64,
    name: String,
    category_id: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
}

#[derive(Deserialize)]
struct PageQuery {
    status: Option<Status>,
    #[serde(default)]
    after: i64,
    limit: Option<u8>,
}

async fn list_pets(
    State(pool): State<PgPool>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Vec<Pet>>, StatusCode> {
    let limit = i64::from(page.limit.unwrap_or(20).min(100));
    let query = match page.status {
        Some(status) => sqlx::query_as(
            "SELECT id, name, category_id, status FROM pets WHERE status = $3 AND id > $1 ORDER BY id LIMIT $2",
        )
        .bind(page.after)
        .bind(limit)
        .bind(status),
        None => sqlx::query_as(
            "SELECT id, name, category_id, status FROM pets WHERE id > $1 ORDER BY id LIMIT $2",
        )
        .bind(page.after)
        .bind(limit),
    };
    query.fetch_all(&pool).await.map(Json).map_err(internal_error)
}

async fn get_pet(State(pool): State<PgPool>, Path(id): Path<i64>) -> Result<Json<Pet>, StatusCode> {
    let pet = sqlx::query_as("SELECT id, name, category_id, status FROM pets WHERE id = $1")
        .bind(id)
        .fetch_optional(&pool)
        .await
        .map_err(internal_error)?;
    pet.map(Json).ok_or(StatusCode::NOT_FOUND)
}

async fn create_pet(
    State(pool): State<PgPool>,
    Json(new): Json<NewPet>,
) -> Result<(StatusCode, [(HeaderName, String); 1], Json<Pet>), StatusCode> {
    let pet: Pet = sqlx::query_as(
        "INSERT INTO pets (name, category_id, status) VALUES ($1, $2, $3) RETURNING id, name, category_id, status",
    )
    .bind(new.name)
    .bind(new.category_id)
    .bind(new.status)
    .fetch_one(&pool)
    .await
    .map_err(internal_error)?;
    Ok((StatusCode::CREATED, [(LOCATION, format!("/v1/pets/{}", pet.id))], Json(pet)))
}

fn internal_error(error: sqlx::Error) -> StatusCode {
    eprintln!("{error}");
    StatusCode::INTERNAL_SERVER_ERROR
}
