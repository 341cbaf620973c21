package auth

// AdminCookie is the name of the cookie that holds a session of the admin listener. Browsers
// send cookies to every port of a host, so it comes to the public listener as well, which
// must not pass it to backends.
const AdminCookie = "weir_admin"
