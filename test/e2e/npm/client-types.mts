// Is compiled, not run: the types of clients/js as a page uses them.
import { connect, type Gap, type Message } from '../../../clients/js/weir.js';

const stream = connect('https://push.example', {
  channels: ['news', 'orders:1'],
  since: localStorage.getItem('position') ?? '',
  token: async () => (await fetch('/token')).text(),
  transports: ['ws', 'sse'],
  share: 'user-42',
});
const end: () => void = stream.on('message', (m: Message) => console.log(m.channel.length, m.data, m.tags?.['a']));
stream.on('gap', (g: Gap) => console.log(g.from, g.reason === 'overflow'));
stream.on('down', ({ error, retry }) => console.log(error.message, retry.toFixed()));
// @ts-expect-error: there is no such event
stream.on('messages', () => {});
// @ts-expect-error: nor such a transport
connect('/', { transports: ['carrier pigeon'] });
stream.subscribe('a', 'b');
localStorage.setItem('position', stream.position);
end();
