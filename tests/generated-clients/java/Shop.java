import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.UUID;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.openapitools.client.ApiClient;
import org.openapitools.client.ApiException;
import org.openapitools.client.ApiResponse;
import org.openapitools.client.api.AnimalsApi;
import org.openapitools.client.api.EventsApi;
import org.openapitools.client.api.StoreApi;
import org.openapitools.client.model.Error;
import org.openapitools.client.model.Event;
import org.openapitools.client.model.NewOrder;
import org.openapitools.client.model.NewPet;
import org.openapitools.client.model.Order;
import org.openapitools.client.model.OrderStatus;
import org.openapitools.client.model.Pet;
import org.openapitools.client.model.PetStatus;

/** Sells a pet with a client that openapi-generator made from openapi.json. */
class Shop {
    private static final Pattern NEXT_LINK = Pattern.compile("<[^>]*[?&](cursor|after)=([^&>]*)[^>]*>; *rel=\"next\"");

    /** Returns the cursor of a list, or the position in the feed of events, from the link to the next page, or null. */
    private static String nextPage(ApiResponse<?> response) {
        String header = String.join(", ", response.getHeaders().getOrDefault("link", List.of()));
        Matcher link = NEXT_LINK.matcher(header);
        return link.find() ? URLDecoder.decode(link.group(2), StandardCharsets.UTF_8) : null;
    }

    /** Returns a new idempotency key. Store it before the call, and send it again if you repeat the call. */
    private static String newKey() {
        return UUID.randomUUID().toString();
    }

    private static void expect(String what, Object actual, Object expected) {
        if (!Objects.equals(actual, expected)) {
            throw new IllegalStateException(what + ": " + actual + " instead of " + expected);
        }
    }

    public static void main(String[] arguments) throws Exception {
        ApiClient client = new ApiClient();
        client.updateBaseUri(System.getenv("PETSTORE_URL") + "/v1");
        String authorization = "Bearer " + System.getenv("PETSTORE_KEY");
        client.setRequestInterceptor(request -> request.header("Authorization", authorization));
        AnimalsApi animals = new AnimalsApi(client);
        StoreApi store = new StoreApi(client);
        EventsApi events = new EventsApi(client);

        // Add three pets.
        Pet rex = null;
        for (int number = 0; number < 3; number++) {
            NewPet pet = new NewPet().name("Rex").categoryId(3L).status(PetStatus.AVAILABLE).reference(newKey());
            pet.putMetadataItem("price", "129.00");
            rex = animals.createPet(pet, newKey());
            expect("name", rex.getName(), "Rex");
            expect("status", rex.getStatus(), PetStatus.AVAILABLE);
            expect("reference", rex.getReference(), pet.getReference());
            expect("price", rex.getMetadata().get("price"), "129.00");
        }

        // List all pages.
        List<Long> listed = new ArrayList<>();
        int pages = 0;
        String cursor = null;
        do {
            ApiResponse<List<Pet>> page = animals.listPetsWithHttpInfo(2, null, null, null, null, cursor, null, null);
            page.getData().forEach(pet -> listed.add(pet.getId()));
            pages++;
            cursor = nextPage(page);
        } while (cursor != null);
        for (long id = rex.getId() - 2; id <= rex.getId(); id++) {
            expect("pet " + id + " is listed", Collections.frequency(listed, id), 1);
        }

        // Order a pet. Only one client gets it.
        NewOrder newOrder = new NewOrder().petId(rex.getId());
        Order order = store.placeOrder(newOrder, newKey());
        expect("status", order.getStatus(), OrderStatus.PLACED);
        Error conflict;
        try {
            store.placeOrder(newOrder, newKey());
            throw new IllegalStateException("a pet was ordered twice");
        } catch (ApiException refused) {
            conflict = ApiClient.createDefaultObjectMapper().readValue(refused.getResponseBody(), Error.class);
        }
        expect("status", conflict.getStatus(), 409);
        expect("code", conflict.getCode(), "pet_not_available");

        // Read the events, until a page is empty.
        Set<String> seen = new HashSet<>();
        ApiResponse<List<Event>> page;
        String after = null;
        do {
            page = events.listEventsWithHttpInfo(after, null, null, null, null);
            for (Event event : page.getData()) {
                if (event.getPetId().equals(rex.getId())) {
                    seen.add(event.getType());
                }
            }
            after = nextPage(page);
        } while (!page.getData().isEmpty());
        expect("pet.created", seen.contains("pet.created"), true);
        expect("order.placed", seen.contains("order.placed"), true);

        System.out.printf("Java: %d pets on %d pages, order %d, then %d %s%n",
            listed.size(), pages, order.getId(), conflict.getStatus(), conflict.getCode());
    }
}
