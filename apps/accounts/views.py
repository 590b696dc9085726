"""Signing in and out."""

from axes.helpers import get_client_ip_address
from django.contrib.auth import login, views
from django.contrib.auth.decorators import login_required
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm, SetPasswordForm
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from apps.accounts.models import User
from apps.accounts.services import password_set, sign_in_failed, sign_in_link_use, signed_in
from apps.common.clock import now
from apps.journal.choices import Source

BACKEND = "django.contrib.auth.backends.ModelBackend"
BY_LINK = "by_link"
"""In a session that began with a one-time link: its owner may have forgotten the password they had."""

LONGEST_NAME = 150
"""As the model has it."""


class SignInForm(AuthenticationForm):
    """Name and password. Django's own lets names of any length pass to the lock's table, which holds shorter ones."""

    def clean_username(self) -> str:
        name: str = self.cleaned_data["username"]
        if len(name) > LONGEST_NAME:
            raise ValidationError(f"A name has at most {LONGEST_NAME} characters.")
        return name


class SignIn(views.LoginView):
    """Name and password; attempts are limited by django-axes."""

    authentication_form = SignInForm
    template_name = "accounts/sign_in.html"
    redirect_authenticated_user = True

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        answer = super().form_valid(form)
        signed_in(user_id=form.get_user().pk, how="by password", source=Source.WEB, now=now())
        return answer

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        given = form.cleaned_data
        if "username" in given and "password" in given:  # what is no name or no password was not tried
            address = get_client_ip_address(self.request) or ""
            sign_in_failed(name=given["username"], address=address, source=Source.WEB, now=now())
        return super().form_invalid(form)


class SignOut(views.LogoutView):
    """End the session; POST only."""


@never_cache
@require_http_methods(["GET", "POST"])
def first(request: HttpRequest, secret: str) -> HttpResponse:
    """Sign in by a one-time link. A GET only shows the button, so that a link preview cannot spend the link."""
    if request.method == "GET":
        return render(request, "accounts/first.html", {"secret": secret})
    user = sign_in_link_use(secret=secret, now=now())
    if user is None:
        return render(request, "accounts/first.html", {"spent": True}, status=410)
    login(request, user, backend=BACKEND)
    request.session[BY_LINK] = True
    signed_in(user_id=user.pk, how="by a one-time link", source=Source.WEB, now=now())
    return redirect("/")


@login_required
@require_http_methods(["GET", "POST"])
def password(request: HttpRequest) -> HttpResponse:
    """Set one's own password; who did not just come by a one-time link says the one they have."""
    user = request.user
    assert isinstance(user, User)
    may_set = request.session.get(BY_LINK, False) or not user.has_usable_password()
    form = (SetPasswordForm if may_set else PasswordChangeForm)(user, request.POST or None)
    if request.method == "POST" and form.is_valid():
        password_set(user_id=user.pk, password=form.cleaned_data["new_password1"], source=Source.WEB, now=now())
        user.refresh_from_db()
        login(request, user, backend=BACKEND)  # every other session of theirs ends with the old password
        request.session.pop(BY_LINK, None)
        return redirect("/")
    return render(request, "accounts/password.html", {"form": form})
