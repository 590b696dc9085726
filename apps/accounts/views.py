"""Signing in and out."""

from django.contrib.auth import login, views
from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.decorators import login_required
from django.contrib.auth.forms import AuthenticationForm, SetPasswordForm
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from apps.accounts.services import sign_in_link_use
from apps.common.clock import now

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
    login(request, user, backend="django.contrib.auth.backends.ModelBackend")
    return redirect("/")


@login_required
@require_http_methods(["GET", "POST"])
def password(request: HttpRequest) -> HttpResponse:
    """Set one's own password."""
    user = request.user
    assert isinstance(user, AbstractBaseUser)
    form = SetPasswordForm(user, request.POST or None)
    if request.method == "POST" and form.is_valid():
        form.save()
        login(request, user, backend="django.contrib.auth.backends.ModelBackend")
        return redirect("/")
    return render(request, "accounts/password.html", {"form": form})
