// A real OpenID provider for the tests: the npm package oidc-provider, certified by the OpenID Foundation.
// PORT, REDIRECT_URI and CLIENT_SECRET come from the environment. Any login name is an account; any password fits.
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";

const found = await import(pathToFileURL(process.env.OIDC_PROVIDER).href);
const Provider = found.default ?? found.Provider;
const issuer = `http://127.0.0.1:${process.env.PORT}`;

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "ondot",
      client_secret: process.env.CLIENT_SECRET,
      redirect_uris: [process.env.REDIRECT_URI],
    },
  ],
  claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["name"] },
  pkce: { required: () => true },
  features: { devInteractions: { enabled: true } },
  async findAccount(_context, sub) {
    return {
      accountId: sub,
      claims: async () => ({ sub, email: sub.includes("@") ? sub : `${sub}@example.com`, email_verified: !sub.startsWith("unverified"), name: sub }),
    };
  },
});
// The provider runs without TLS on this machine.
createServer(provider.callback()).listen(Number(process.env.PORT), "127.0.0.1", () => console.log("listening"));
