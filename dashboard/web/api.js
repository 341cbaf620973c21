// The admin API. Who is no longer let in is brought to the login page.

export class Refused extends Error {
  constructor(status, message, hint) {
    super(hint ? `${message} (${hint})` : message);
    this.status = status;
  }
}

export async function ask(path, options = {}) {
  const answer = await fetch(path, { credentials: "same-origin", redirect: "error", signal: AbortSignal.timeout(options.patience ?? 20_000), ...options });
  if (answer.status === 401) {
    location.assign("/login");
    throw new Refused(401, "logged out");
  }
  if (answer.status === 204) return null;
  let body = null;
  try {
    body = await answer.json();
  } catch {
    if (answer.ok) throw new Refused(answer.status, "the answer is no JSON");
  }
  if (!answer.ok) throw new Refused(answer.status, body?.error?.message ?? `HTTP ${answer.status}`, body?.error?.hint);
  return body;
}

export const post = (path, body, options = {}) => ask(path, { method: "POST", headers: body === undefined ? {} : { "Content-Type": "application/json" }, body: body === undefined ? undefined : JSON.stringify(body), ...options });

export const say = (err) => (err?.name === "TimeoutError" ? "no answer in time" : err?.name === "TypeError" ? "the server cannot be reached" : (err?.message ?? String(err)));
