from django.urls import path

from apps.accounts import views

urlpatterns = [
    path("sign-in", views.SignIn.as_view(), name="sign-in"),
    path("sign-out", views.SignOut.as_view(), name="sign-out"),
    path("first/<str:secret>", views.first, name="first-sign-in"),
    path("password", views.password, name="password"),
]
