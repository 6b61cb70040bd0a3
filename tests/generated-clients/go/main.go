// Sells a pet with a client that openapi-generator made from openapi.json.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"os"
	"regexp"

	"shop/petstore"
)

var nextLink = regexp.MustCompile(`<([^>]*)>; *rel="next"`)

// nextPage returns a parameter of the link to the next page: the cursor of a list, or the position in the feed of events.
// The last page of a list has no link.
func nextPage(response *http.Response, parameter string) string {
	link := nextLink.FindStringSubmatch(response.Header.Get("Link"))
	if link == nil {
		return ""
	}
	address, err := url.Parse(link[1])
	check(err)
	return address.Query().Get(parameter)
}

// newKey returns a new idempotency key. Store it before the call, and send it again if you repeat the call.
func newKey() string {
	key := make([]byte, 16)
	_, err := rand.Read(key)
	check(err)
	return hex.EncodeToString(key)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func expect(what string, actual, expected any) {
	if actual != expected {
		log.Fatalf("%s: %v instead of %v", what, actual, expected)
	}
}

func main() {
	configuration := petstore.NewConfiguration()
	configuration.Servers = petstore.ServerConfigurations{{URL: os.Getenv("PETSTORE_URL") + "/v1"}}
	shop := petstore.NewAPIClient(configuration)
	ctx := context.WithValue(context.Background(), petstore.ContextAccessToken, os.Getenv("PETSTORE_KEY"))

	// Add three pets.
	var rex *petstore.Pet
	for number := 0; number < 3; number++ {
		pet := petstore.NewPetInput("Rex", 3)
		pet.SetStatus(petstore.AVAILABLE)
		pet.SetReference(newKey())
		pet.SetMetadata(map[string]string{"price": "129.00"})
		created, _, err := shop.AnimalsAPI.CreatePet(ctx).PetInput(*pet).IdempotencyKey(newKey()).Execute()
		check(err)
		expect("name", created.Name, "Rex")
		expect("status", created.GetStatus(), petstore.AVAILABLE)
		expect("reference", created.GetReference(), pet.GetReference())
		expect("price", created.GetMetadata()["price"], "129.00")
		rex = created
	}

	// List all pages.
	times := map[int64]int{}
	pages := 0
	for cursor := ""; pages == 0 || cursor != ""; pages++ {
		request := shop.AnimalsAPI.ListPets(ctx).Limit(2)
		if cursor != "" {
			request = request.Cursor(cursor)
		}
		page, response, err := request.Execute()
		check(err)
		for _, pet := range page {
			times[pet.Id]++
		}
		cursor = nextPage(response, "cursor")
	}
	for id := rex.Id - 2; id <= rex.Id; id++ {
		expect(fmt.Sprintf("pet %d is listed", id), times[id], 1)
	}

	// Order a pet. Only one client gets it.
	order, _, err := shop.StoreAPI.PlaceOrder(ctx).OrderInput(*petstore.NewOrderInput(rex.Id)).IdempotencyKey(newKey()).Execute()
	check(err)
	expect("status", order.Status, petstore.PLACED)
	_, _, err = shop.StoreAPI.PlaceOrder(ctx).OrderInput(*petstore.NewOrderInput(rex.Id)).IdempotencyKey(newKey()).Execute()
	var refused *petstore.GenericOpenAPIError
	if !errors.As(err, &refused) {
		log.Fatalf("the second order: %v", err)
	}
	conflict, ok := refused.Model().(petstore.Error)
	if !ok {
		log.Fatalf("the second order: %v %s", err, refused.Body())
	}
	expect("status", conflict.Status, int32(http.StatusConflict))
	expect("code", conflict.Code, "pet_not_available")

	// Read the events, until a page is empty.
	seen := map[string]bool{}
	for after := ""; ; {
		request := shop.EventsAPI.ListEvents(ctx)
		if after != "" {
			request = request.After(after)
		}
		page, response, err := request.Execute()
		check(err)
		if len(page) == 0 {
			break
		}
		for _, event := range page {
			if event.PetId == rex.Id {
				seen[event.Type] = true
			}
		}
		after = nextPage(response, "after")
	}
	expect("pet.created", seen["pet.created"], true)
	expect("order.placed", seen["order.placed"], true)

	fmt.Printf("Go: %d pets on %d pages, order %d, then %d %s\n", len(times), pages, order.Id, conflict.Status, conflict.Code)
}
