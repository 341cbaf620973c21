// An OpenID provider: node openid.mjs '{"port","redirect","logout"}'. It prints a line when it listens and ends with its
// standard input. The name at its login form is the user's and, as far as the colon, the user's group: "ops:ada".
import { Provider } from 'oidc-provider';

const { port, redirect, logout } = JSON.parse(process.argv[2]);
const issuer = `http://127.0.0.1:${port}`;
const provider = new Provider(issuer, {
  clients: [{ client_id: 'weir', client_secret: 'a-secret-of-this-test', redirect_uris: [redirect], post_logout_redirect_uris: [logout] }],
  claims: { openid: ['sub'], groups: ['groups'] },
  scopes: ['openid', 'groups'],
  cookies: { keys: ['a-key-of-this-test'] },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, groups: [id.split(':')[0]] }) }),
});
const server = provider.listen(port, '127.0.0.1', () => console.log(issuer));
process.stdin.resume();
process.stdin.on('end', () => { server.closeAllConnections(); server.close(); });
