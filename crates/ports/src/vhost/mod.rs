//! `vhost:PATH`: a virtual machine's network device, or any other vhost-user front end.

mod ring;
