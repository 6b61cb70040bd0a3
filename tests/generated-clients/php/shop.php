<?php
// Sells a pet with a client that openapi-generator made from openapi.json.
declare(strict_types=1);

use OpenAPI\Client\Api\AnimalsApi;
use OpenAPI\Client\Api\EventsApi;
use OpenAPI\Client\Api\StoreApi;
use OpenAPI\Client\ApiException;
use OpenAPI\Client\Configuration;
use OpenAPI\Client\Model\NewOrder;
use OpenAPI\Client\Model\NewPet;
use OpenAPI\Client\Model\OrderStatus;
use OpenAPI\Client\Model\PetStatus;

// Composer would write these lines.
require 'GuzzleHttp/autoload.php';
spl_autoload_register(function (string $class): void {
    if (str_starts_with($class, 'OpenAPI\\Client\\')) {
        $path = str_replace(['OpenAPI\\Client\\', '\\'], ['', '/'], $class);
        require __DIR__ . "/petstore/lib/$path.php";
    }
});

/** Returns a parameter of the link to the next page. The last page of a list has no link. */
function next_page(array $headers, string $parameter): ?string
{
    $headers = array_change_key_case($headers);
    if (!preg_match('/<([^>]*)>; *rel="next"/', $headers['link'][0] ?? '', $link)) {
        return null;
    }
    parse_str(parse_url($link[1], PHP_URL_QUERY), $query);
    return $query[$parameter];
}

/** Returns a new idempotency key. Store it before the call, and send it again if you repeat the call. */
function new_key(): string
{
    return bin2hex(random_bytes(16));
}

function expect(string $what, mixed $actual, mixed $expected): void
{
    if ($actual !== $expected) {
        throw new Exception("$what: " . json_encode($actual) . ' instead of ' . json_encode($expected));
    }
}

$configuration = (new Configuration())
    ->setHost(getenv('PETSTORE_URL') . '/v1')
    ->setAccessToken(getenv('PETSTORE_KEY'));
$animals = new AnimalsApi(config: $configuration);
$store = new StoreApi(config: $configuration);
$events = new EventsApi(config: $configuration);

// Add three pets.
for ($number = 0; $number < 3; $number++) {
    $pet = (new NewPet())
        ->setName('Rex')
        ->setCategoryId(3)
        ->setStatus(PetStatus::AVAILABLE)
        ->setReference(new_key())
        ->setMetadata(['price' => '129.00']);
    $rex = $animals->createPet($pet, new_key());
    expect('name', $rex->getName(), 'Rex');
    expect('status', $rex->getStatus(), PetStatus::AVAILABLE);
    expect('reference', $rex->getReference(), $pet->getReference());
    expect('price', $rex->getMetadata()['price'], '129.00');
}

// List all pages.
$listed = [];
$pages = 0;
$cursor = null;
do {
    [$page, , $headers] = $animals->listPetsWithHttpInfo(limit: 2, cursor: $cursor);
    foreach ($page as $pet) {
        $listed[] = $pet->getId();
    }
    $pages++;
    $cursor = next_page($headers, 'cursor');
} while ($cursor !== null);
$times = array_count_values($listed);
for ($id = $rex->getId() - 2; $id <= $rex->getId(); $id++) {
    expect("pet $id is listed", $times[$id] ?? 0, 1);
}

// Order a pet. Only one client gets it.
$new_order = (new NewOrder())->setPetId($rex->getId());
$order = $store->placeOrder($new_order, new_key());
expect('status', $order->getStatus(), OrderStatus::PLACED);
try {
    $store->placeOrder($new_order, new_key());
    throw new Exception('a pet was ordered twice');
} catch (ApiException $refused) {
    $conflict = $refused->getResponseObject();
    expect('status', $conflict->getStatus(), 409);
    expect('code', $conflict->getCode(), 'pet_not_available');
}

// Read the events, until a page is empty.
$seen = [];
$after = null;
do {
    [$page, , $headers] = $events->listEventsWithHttpInfo(after: $after);
    foreach ($page as $event) {
        if ($event->getPetId() === $rex->getId()) {
            $seen[] = $event->getType();
        }
    }
    $after = next_page($headers, 'after');
} while ($page !== []);
expect('pet.created', in_array('pet.created', $seen, true), true);
expect('order.placed', in_array('order.placed', $seen, true), true);

echo 'PHP: ', count($listed), " pets on $pages pages, order {$order->getId()}, then ",
    "{$conflict->getStatus()} {$conflict->getCode()}\n";
