"""The pages for the people who work in the shop: add a pet, change it, sell it at the till, delete a mistake."""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping

from checkout import Checkout
from flask import Blueprint, flash, redirect, render_template, request, session, url_for
from flask.typing import ResponseReturnValue
from pets import CATEGORIES, DETAILS, is_photo, is_price, pet_from
from petstore_client import REMOVE, Mirror, Petstore, errors

FOUND = "SELECT * FROM pets WHERE id = :q OR reference = :q OR instr(lower(name), lower(:q)) ORDER BY id DESC LIMIT 20"


def staff_pages(store: Petstore, mirror: Mirror, checkout: Checkout) -> Blueprint:
    staff = Blueprint("staff", __name__, url_prefix="/staff")

    @staff.before_request
    def require_login() -> ResponseReturnValue | None:
        return None if "cashier" in session or request.endpoint == "staff.login" else redirect("/staff/login", 303)

    @staff.route("/login", methods=["GET", "POST"])
    def login() -> ResponseReturnValue:
        """Enough for an example, but not for a shop.

        There is one password for everybody, and nobody is stopped from guessing it. Use the login that your staff
        already has, serve the shop over HTTPS, and set SESSION_COOKIE_SECURE.
        """
        password, expected = request.form.get("password", ""), os.environ.get("SHOP_PASSWORD", "")
        if request.method == "GET" or not expected:
            return render_template("login.html", enabled=expected != "")
        if not hmac.compare_digest(password.encode(), expected.encode()):
            return render_template("login.html", enabled=True, problem="That is not the password."), 403
        session["cashier"] = request.form["name"].strip()[:100] or "somebody"
        return redirect(url_for("staff.home"), 303)

    @staff.post("/logout")
    def logout() -> ResponseReturnValue:
        session.clear()
        return redirect(url_for("home"), 303)

    @staff.get("/")
    def home() -> ResponseReturnValue:
        search = request.args.get("q", "").strip()
        pets = [pet_from(row) for row in mirror.query(FOUND, {"q": search})]
        latest = next(store.orders.list(sort="-id", limit=10).pages()).items
        return render_template("staff.html", pets=pets, orders=latest, search=search)

    @staff.route("/pets/new", methods=["GET", "POST"])
    def add() -> ResponseReturnValue:
        if request.method == "GET":
            return render_template("staff_pet.html", pet=None, form={})
        try:
            name, category_id, details = read_form()
            key = f"add-{request.form['number']}"  # so that a second click does not add a second pet
            pet = store.pets.create(
                name=name, category_id=category_id, status="available", metadata=details, idempotency_key=key
            )
        except (ValueError, errors.BadRequestError) as error:
            return render_template("staff_pet.html", pet=None, form=request.form, problem=error), 400
        flash(f"{pet.name} is in the shop.")
        return redirect(url_for("staff.pet", pet_id=pet.id), 303)

    @staff.route("/pets/<int:pet_id>", methods=["GET", "POST"])
    def pet(pet_id: int) -> ResponseReturnValue:
        pet = store.pets.get(pet_id)  # not from the mirror, so that you see at once what you have saved
        if request.method == "GET":
            form = {**pet.metadata, "name": pet.name, "category": str(pet.category_id), "etag": pet.etag}
            return render_template("staff_pet.html", pet=pet, form=form)
        try:
            name, category_id, details = read_form()
            # An update keeps the members that it does not name, so REMOVE names what the form has left empty.
            metadata = {member: details.get(member, REMOVE) for member in DETAILS}
            etag = request.form["etag"]  # so that nobody overwrites what a colleague has just changed
            store.pets.update(pet_id, name=name, category_id=category_id, metadata=metadata, if_match=etag)
            flash("Saved.")
        except (ValueError, errors.BadRequestError) as error:
            return render_template("staff_pet.html", pet=pet, form=request.form, problem=error), 400
        except errors.PreconditionFailedError:
            now = store.pets.get(pet_id)
            if (now.name, now.category_id, details_in(now.metadata)) == (name, category_id, details):
                flash("Saved.")  # by an attempt whose response was lost
            else:
                flash("Not saved: a colleague has just changed this pet. You see the current values.", "problem")
        return redirect(url_for("staff.pet", pet_id=pet_id), 303)

    @staff.post("/pets/<int:pet_id>/sell")
    def sell(pet_id: int) -> ResponseReturnValue:
        """Sells a pet at the till. If the shop is killed after the first step, `finish_all` does the second one."""
        sale = {"price": request.form["price"], "payment": "till", "cashier": session["cashier"]}
        try:
            store.orders.complete(checkout.reserve(request.form["number"], pet_id, sale).id)
            flash(f"Sold for €{sale['price']}.")
        except errors.ConflictError:
            flash("Not sold: the pet is reserved, or somebody has bought it.", "problem")
        return redirect(url_for("staff.pet", pet_id=pet_id), 303)

    @staff.post("/pets/<int:pet_id>/delete")
    def delete(pet_id: int) -> ResponseReturnValue:
        try:
            store.pets.delete(pet_id, if_match=request.form["etag"])
        except errors.NotFoundError:
            pass  # deleted by an attempt whose response was lost, or by a colleague
        except (errors.ConflictError, errors.PreconditionFailedError) as error:
            changed = isinstance(error, errors.PreconditionFailedError)
            reason = "a colleague has just changed this pet" if changed else "somebody has ordered this pet"
            flash(f"Not deleted: {reason}.", "problem")
            return redirect(url_for("staff.pet", pet_id=pet_id), 303)
        flash("Deleted.")
        return redirect(url_for("staff.home"), 303)

    return staff


def read_form() -> tuple[str, int, dict[str, str]]:
    """Returns the name, the category and the metadata, or raises a `ValueError` that says what is wrong."""
    details = details_in(request.form)
    if not is_price(details.get("price", "0.00")):
        raise ValueError("The price must look like 129.00.")
    if "photo" in details and not is_photo(details["photo"]):
        raise ValueError("The photo must be an address that starts with https:// or /static/photos/.")
    if request.form["category"] not in map(str, CATEGORIES):
        raise ValueError("Choose a category from the list.")
    return request.form["name"].strip(), int(request.form["category"]), details


def details_in(source: Mapping[str, str]) -> dict[str, str]:
    texts = {member: source.get(member, "").strip().replace("\r\n", "\n") for member in DETAILS}
    return {member: text for member, text in texts.items() if text}
