"""A web shop that has no database of its own.

What buyers look at comes from a `Mirror`: a copy of all pets in an SQLite file, which the event feed keeps current.
What changes something goes through the SDK to the service. checkout.py takes the money, and staff.py has the pages of
the staff.

    PETSTORE_URL=… PETSTORE_KEY=… SHOP_PASSWORD=… python shop.py [PORT]
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import threading
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import urlsplit

from checkout import NUMBER, Checkout, new_number
from fake_bank import Bank
from flask import Flask, Response, abort, flash, redirect, render_template, request, session, url_for
from flask.typing import ResponseReturnValue
from pets import CATEGORIES, IS_PRICE, pet_from, photo_of, price_of
from petstore_client import ConflictError, Mirror, NotFoundError, Order, Petstore, PetstoreError, errors
from staff import staff_pages
from werkzeug.exceptions import MethodNotAllowed
from werkzeug.serving import make_server

PER_PAGE = 12
PHOTOS = sorted(f"/static/photos/{file.name}" for file in Path(__file__).parent.glob("static/photos/*.svg"))
SORTS = {
    "newest": ("Newest", "id DESC"),
    "cheapest": ("Lowest price", "price, id DESC"),
    "dearest": ("Highest price", "price DESC, id DESC"),
}
# This reads the whole table, which is fast enough for some 100,000 pets. If you have more, add an index or a full-text
# table to the file. The mirror keeps them when it is rebuilt.
ON_SALE = f"""
    SELECT *, CAST(text AS REAL) AS price FROM (SELECT *, json_extract(metadata, '$.price') AS text FROM pets)
    WHERE status IN ('available', 'pending') AND {IS_PRICE}
      AND (:category IS NULL OR category_id = :category) AND name LIKE :pattern ESCAPE '!'
"""


def create_app(store: Petstore, mirror: Mirror, checkout: Checkout) -> Flask:
    app = Flask(__name__)
    app.secret_key = os.environ.get("SHOP_SECRET") or secrets.token_hex()  # signs the cookie of the session
    app.config.update(SESSION_COOKIE_SAMESITE="Lax", MAX_CONTENT_LENGTH=64 * 1024)
    app.jinja_env.globals.update(categories=CATEGORIES, photos=PHOTOS, mirror=mirror, new_number=new_number)
    app.jinja_env.filters.update(price=price_of, photo=photo_of)
    app.register_blueprint(staff_pages(store, mirror, checkout))

    @app.before_request
    def refuse_forms_of_other_sites() -> None:
        """Prevents cross-site request forgery: the browser says where a form is from, and no site can change that."""
        origin = urlsplit(request.headers.get("Origin", request.host_url)).netloc
        site = request.headers.get("Sec-Fetch-Site", "same-origin")
        if request.method == "POST" and (origin != request.host or site != "same-origin"):
            abort(403)

    @app.before_request
    def refuse_ids_that_nothing_has() -> None:
        if (request.view_args or {}).get("pet_id", 0) >= 2**63:
            abort(404)

    @app.after_request
    def add_security_headers(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' https:; "
            "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        )
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "same-origin"  # the address of an order is a secret
        if request.endpoint != "static":
            response.headers["Cache-Control"] = "no-store"
        return response

    @app.errorhandler(PetstoreError)
    def service_failed(error: PetstoreError) -> ResponseReturnValue:
        """The service could not respond. The pages that only read the mirror never come here."""
        outage = (errors.APIConnectionError, errors.ServiceUnavailableError, errors.RateLimitError)
        if not (isinstance(error, outage) or error.outcome_unknown):
            raise error  # a bug, or a wrong key: trying again does not help
        app.logger.warning("%s %s: %s", request.method, request.path, error)
        return render_template("error.html", outage=True, **(request.view_args or {})), 503

    @app.errorhandler(404)
    @app.errorhandler(NotFoundError)
    def not_found(_: Exception) -> ResponseReturnValue:
        return render_template("error.html"), 404

    @app.errorhandler(405)
    def reloaded(error: MethodNotAllowed) -> ResponseReturnValue:
        """Pressing Enter in the address bar after a form was sent: back to the page that the form is on."""
        return redirect(request.path.rpartition("/")[0]) if request.method == "GET" else error

    @app.get("/")
    def home() -> ResponseReturnValue:
        """The newest pets, or those that match the category and the search."""
        search, sort = request.args.get("q", "").strip()[:100], request.args.get("sort", "newest")
        category, page = request.args.get("category", type=int), request.args.get("page", 1, int)
        category, sort = category if category in CATEGORIES else None, sort if sort in SORTS else "newest"
        page = min(max(page, 1), 10_000)
        parameters = {
            "category": category,
            "pattern": "%" + re.sub("([!%_])", r"!\1", search) + "%",
            "offset": PER_PAGE * (page - 1),
            "limit": PER_PAGE + 1,  # one more, to see whether there is a next page
        }
        rows = mirror.query(f"{ON_SALE} ORDER BY {SORTS[sort][1]} LIMIT :limit OFFSET :offset", parameters)
        pets, has_next = [pet_from(row) for row in rows[:PER_PAGE]], len(rows) > PER_PAGE
        chosen = {"q": search or None, "category": category, "sort": sort}
        return render_template("home.html", pets=pets, page=page, has_next=has_next, chosen=chosen, sorts=SORTS)

    @app.get("/pets/<int:pet_id>")
    def pet(pet_id: int) -> ResponseReturnValue:
        rows = mirror.query("SELECT * FROM pets WHERE id = ?", (pet_id,))
        return render_template("pet.html", pet=pet_from(rows[0]) if rows else abort(404))

    @app.post("/pets/<int:pet_id>/order")
    def buy(pet_id: int) -> ResponseReturnValue:
        number = request.form["number"] if NUMBER.fullmatch(request.form["number"]) else abort(400)
        pet = store.pets.get(pet_id)  # because the mirror can be a moment behind
        price = price_of(pet)
        if price is None or price != request.form["price"]:  # the buyer has seen another price
            return render_template("pet.html", pet=pet, problem="price"), 409
        try:
            checkout.reserve(number, pet_id, {"price": price})
        except ConflictError as error:
            if error.code != "pet_not_available":
                raise
            return render_template("pet.html", pet=pet, problem="taken"), 409
        # So that the pages can link to the order: no more than ten, because a cookie is small.
        session["orders"] = [*session.get("orders", [])[-9:], (pet_id, number)]
        return redirect(url_for("order", number=number), 303)

    @app.get("/orders/<number>")
    def order(number: str) -> ResponseReturnValue:
        order = checkout.find(number) or abort(404)
        pet, payment, seconds = store.pets.get(order.pet_id), checkout.bank.state(number), seconds_left(order)
        return render_template("order.html", number=number, order=order, pet=pet, payment=payment, seconds_left=seconds)

    @app.post("/orders/<number>/pay")
    def pay(number: str) -> ResponseReturnValue:
        order = checkout.find(number) or abort(404)
        with suppress(TimeoutError):  # the page of the order says so
            checkout.pay(order, number, request.form.get("card", ""), request.form.get("code"))
        if "code" in request.form and checkout.bank.state(number) == "code needed":
            flash("The bank does not know this code. Please enter it again.", "problem")
        return redirect(url_for("order", number=number), 303)

    @app.post("/orders/<number>/cancel")
    def cancel(number: str) -> ResponseReturnValue:
        checkout.cancel(checkout.find(number) or abort(404), number)
        return redirect(url_for("order", number=number), 303)

    return app


def seconds_left(order: Order) -> int:
    """Returns a little less than the time until the order expires, because paying takes a moment."""
    now = datetime.now(timezone.utc)
    return max(0, int(((order.expires_at or now) - now).total_seconds()) - 5)


def open_shop() -> Flask:
    """Starts what runs in the background, and returns the app for a server such as waitress."""
    files = Path(os.environ.get("SHOP_FILES", "."))
    # A buyer waits for these calls. The default, a minute of retries, is for programs that nobody watches.
    store = Petstore(timeout_seconds=3, max_time_seconds=6)
    checkout = Checkout(store, Bank(files / "bank.sqlite"), int(os.environ.get("SHOP_HOLD_SECONDS", "600")))
    # Nobody waits for the mirror, so its client has the default times. Each query has a connection of its own, so all
    # threads can share the mirror.
    mirror = Mirror(Petstore(), files / "pets.sqlite")
    with suppress(TimeoutError):  # during an outage, the shop opens with the copy that it has
        mirror.wait_until_current(timeout_seconds=5)
    threading.Thread(target=checkout.finish_for_ever, daemon=True).start()
    return create_app(store, mirror, checkout)


def main(port: int) -> None:
    server = make_server("127.0.0.1", port, open_shop(), threaded=True)
    print(f"The shop is at http://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000)
