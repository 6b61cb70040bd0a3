//! `petstore seed`: realistic pets, the same ones for the same seed.

use petstore_domain::pet::PetName;

use crate::support::program::run;
use crate::support::{TestDatabase, TestService};

/// Runs `petstore seed` and returns its output.
fn seed(database: &TestDatabase, arguments: &[&str]) -> String {
    let output = run(&[&["seed"], arguments].concat(), &[("DATABASE_URL", &database.url())]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn the_same_seed_gives_the_same_pets_and_another_seed_gives_others() {
    let (one, same, other) =
        (TestDatabase::new().await, TestDatabase::new().await, TestDatabase::new().await);
    seed(&one, &["--count", "500", "--seed", "7"]);
    // The first pets do not depend on the count.
    seed(&same, &["--count", "800", "--seed", "7"]);
    seed(&other, &["--count", "500", "--seed", "8"]);
    let (one, same, other) = (one.pets().await, same.pets().await, other.pets().await);
    assert_eq!((one.len(), same.len(), other.len()), (500, 800, 500));
    assert_eq!(one, same[..500]);
    assert_ne!(one, other);
}

#[tokio::test]
async fn seeded_pets_are_valid_with_a_realistic_mix_of_statuses() {
    let service = TestService::start().await;
    seed(&service.database, &[]);
    let pets = service.database.pets().await;
    assert_eq!(pets.len(), 1_000);
    for (name, category, _) in &pets {
        assert!(PetName::try_from(name.clone()).is_ok(), "{name:?}");
        assert!((1..=8).contains(category), "{category}");
    }
    let count = |status: Option<&str>| pets.iter().filter(|(_, _, found)| found.as_deref() == status).count();
    for (status, share) in
        [(Some("available"), 500..700), (Some("sold"), 200..300), (Some("pending"), 50..150), (None, 10..80)]
    {
        assert!(share.contains(&count(status)), "{status:?}: {}", count(status));
    }
    // The client checks the answer against the document.
    let page = service.client.get("/v1/pets?status=available&limit=100").await;
    assert_eq!(page.status, 200);
}

#[tokio::test]
async fn seed_adds_to_existing_pets_and_prints_its_rate() {
    let database = TestDatabase::new().await;
    database.add_pets(3).await;
    let printed = seed(&database, &["--count", "25000"]);
    let words: Vec<&str> = printed.split_whitespace().collect();
    let [_, _, _, _, seconds, _, rate, _, _] = words[..] else { panic!("{printed}") };
    assert_eq!(printed, format!("added 25,000 pets in {seconds} s, {rate} per second\n"));
    assert!(rate.replace(',', "").parse::<u32>().unwrap() > 1_000, "{printed}");
    assert_eq!(database.pets().await.len(), 25_003);
}

#[tokio::test]
async fn seed_prints_how_many_pets_it_added_when_it_fails() {
    let database = TestDatabase::new().await;
    let limit = "CREATE FUNCTION check_count() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        IF (SELECT count(*) FROM pets) > 10000 THEN RAISE 'the shop is full'; END IF; RETURN NULL; END $$; \
        CREATE TRIGGER check_count AFTER INSERT ON pets FOR EACH STATEMENT EXECUTE FUNCTION check_count()";
    database.connect().await.batch_execute(limit).await.unwrap();
    let output = run(&["seed", "--count", "20000"], &[("DATABASE_URL", &database.url())]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("petstore: only 10,000 of 20,000 pets were added: "), "{error}");
    assert!(error.contains("the shop is full"), "{error}");
    assert_eq!(database.pets().await.len(), 10_000, "a batch is added as a whole or not at all");
}

#[tokio::test]
async fn seed_refuses_a_count_of_zero_a_missing_database_url_and_an_old_schema() {
    let database = TestDatabase::empty().await;
    assert_eq!(run(&["seed", "--count", "0"], &[("DATABASE_URL", &database.url())]).status.code(), Some(2));
    assert_eq!(run(&["seed"], &[]).status.code(), Some(2));
    let output = run(&["seed"], &[("DATABASE_URL", &database.url())]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("run `petstore migrate` first"), "{error}");
}
