//! TLS with tokio-rustls. The certificate and its key are only for these tests. This line made them:
//!
//! ```sh
//! openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500 -subj /CN=localhost \
//!     -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE \
//!     -keyout key.pem -out certificate.pem
//! ```

use std::io::ErrorKind;
use std::sync::Arc;

use rdma_async::message::Stream;
use rdma_tonic::HttpStream;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::rig::{run, streams};

fn certificate() -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(include_bytes!("tls/certificate.pem")).unwrap()
}

/// Both ends of a stream after the handshake.
async fn encrypted() -> (client::TlsStream<Stream>, server::TlsStream<HttpStream>) {
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("tls/key.pem")).unwrap();
    let server = ServerConfig::builder().with_no_client_auth();
    let server = server.with_single_cert(vec![certificate()], key).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate()).unwrap();
    let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let (at_client, at_server) = streams().await;
    let name = ServerName::try_from("localhost").unwrap();
    let client = TlsConnector::from(Arc::new(client)).connect(name, at_client);
    let server = TlsAcceptor::from(Arc::new(server)).accept(at_server);
    tokio::try_join!(client, server).unwrap()
}

#[test]
fn a_long_text_is_echoed_through_tls_and_both_ends_end_cleanly() {
    run(async {
        let (client, server) = encrypted().await;
        let echoes = tokio::spawn(async move {
            let (mut reader, mut writer) = tokio::io::split(server);
            tokio::io::copy(&mut reader, &mut writer).await.unwrap();
            writer.shutdown().await.unwrap();
        });
        let text: Vec<u8> = (0..4 << 20_u32).map(|at: u32| at.to_le_bytes()[1]).collect();
        let (mut reader, mut writer) = tokio::io::split(client);
        let (sent, mut echo) = (text.clone(), Vec::new());
        let writes = tokio::spawn(async move {
            writer.write_all(&sent).await.unwrap();
            writer.shutdown().await.unwrap();
        });
        reader.read_to_end(&mut echo).await.unwrap();
        assert!(echo == text, "{} bytes arrived", echo.len());
        writes.await.unwrap();
        echoes.await.unwrap();
    });
}

/// The stream ends, but TLS has not.
#[test]
fn a_truncated_stream_is_an_error_of_tls() {
    run(async {
        let (client, mut server) = encrypted().await;
        drop(client.into_inner().0);
        let error = server.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
    });
}
